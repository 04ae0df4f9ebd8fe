from __future__ import annotations


async def test_settings_do_not_show_their_secrets(start_server):
    server = await start_server(
        api_keys=("hidden-key",), file_api_keys="hidden-too", fleet_secret="hidden-secret"
    )
    assert "hidden" not in repr(server.app.state.server.settings)
