"""Upstream requests of one request that run now: one, and a hedge beside it."""

from kvasir_router.proxy.attempts.attempt import UpstreamRequest


class RunningAttempts:
    """At most two at once; only the first one's answer is passed on."""

    def __init__(self) -> None:
        self.current: UpstreamRequest | None = None
        self.hedge: UpstreamRequest | None = None

    def pause(self) -> None:
        """Stop reading the answer that is passed on."""
        if self.current is not None:
            self.current.pause()

    def resume(self) -> None:
        """Read on."""
        if self.current is not None:
            self.current.resume()

    def leave(self) -> None:
        """Stop both at once."""
        if self.current is not None:
            self.current.leave()
        if self.hedge is not None:
            self.hedge.leave()
        self.current = self.hedge = None

    def drop(self, attempt: UpstreamRequest) -> bool:
        """Forget one that has failed; return whether another one continues."""
        if attempt is not self.hedge:
            self.current = self.hedge
        self.hedge = None
        return self.current is not None

    def keep(self, attempt: UpstreamRequest) -> bool:
        """Keep the one that answers, and leave the other; return whether the hedge was kept."""
        hedge, self.hedge = self.hedge, None
        if hedge is None or self.current is None:
            return False
        if attempt is hedge:
            self.current.leave()
            self.current = hedge
            return True
        hedge.leave()
        return False
