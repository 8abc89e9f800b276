"""Arguments of a constructor that are attributes, and in the configuration."""

from typing import Any


class KeepsArguments:
    """Mixin for classes whose `get_config` returns arguments as kept."""

    _arguments: tuple[str, ...] = ()

    def _keep(self, **arguments: Any) -> None:
        """Keeps arguments as attributes, and in the configuration."""
        for name, value in arguments.items():
            setattr(self, name, value)
        self._arguments = (*self._arguments, *arguments)

    def _kept(self) -> dict[str, Any]:
        """The arguments by name, as they are now."""
        return {name: getattr(self, name) for name in self._arguments}
