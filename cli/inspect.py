def command() -> None:
    """In the making."""
