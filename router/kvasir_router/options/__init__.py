"""Every option of `kvasir router`: flags, their parsers and the settings they make."""
