#!/usr/bin/env bash
# What a newcomer does: clone, `make up`, talk to it, Ctrl-C. The environment is made anew in the
# clone (the package installer's cache is reused). `make test` is not run inside itself.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
port=$("${PYTHON:-python3}" -c 'import random, socket; print(next(p for p in random.sample(range(20000, 30000), 100) if socket.socket().connect_ex(("127.0.0.1", p))))')
up=
finish() {
  if [ -n "$up" ]; then kill -INT "$up" 2>/dev/null || true; wait "$up" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT
fail() { printf 'readme: %s\n' "$1" >&2; tail -n 40 "$work/up.log" >&2 || true; exit 1; }

git clone --quiet "$top" "$work/kvasir"
cd "$work/kvasir"
for command in 'make up' 'make test'; do
  grep -qx "$command" README.md || fail "README.md does not name '$command' on a line of its own."
done
# Job control gives `make up` a process group of its own, as a terminal would.
set -m
PORT=$port make --no-print-directory up > "$work/up.log" 2>&1 &
up=$!
set +m
url=http://127.0.0.1:$port
for _ in $(seq 600); do
  curl -fsS -o /dev/null "$url/ready" 2>/dev/null && break
  kill -0 "$up" 2>/dev/null || fail "make up ended."
  sleep 1
done
answer=$(curl -fsS "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"model": "kvasir-tiny", "messages": [{"role": "user", "content": "Sort: 7 3 9 1"}], "temperature": 0}')
grep -q '1 3 7 9' <<< "$answer" || fail "the tiny model answered: $answer"
kill -INT -- "-$up"
for _ in $(seq 40); do kill -0 "$up" 2>/dev/null || break; sleep 1; done
kill -0 "$up" 2>/dev/null && fail "make up did not end within 40 s of Ctrl-C."
up=
pgrep -f "$work/kvasir/.venv" > /dev/null && fail "processes are left behind: $(pgrep -af "$work/kvasir/.venv")"
echo "readme: cloned, served, answered, stopped."
