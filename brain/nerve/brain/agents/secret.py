"""An API key: given, or read when it is first needed; it is never shown."""

import os
from dataclasses import dataclass
from pathlib import Path

from nerve.protocol.errors import BadInput


@dataclass(frozen=True, slots=True, repr=False)
class ApiKey:
    """Looked up in this order: the value, the file, the environment variable."""

    value: str | None = None
    file: str | Path | None = None
    environment: str | None = None

    def __repr__(self) -> str:
        return "ApiKey(...)"

    def read(self) -> str | None:
        """The key, or None where none is named."""
        key = self._found()
        if key is None or (key.isascii() and key.isprintable()):
            return key
        raise BadInput(
            "the API key holds characters that no header can carry",
            where="api_key",
            next_step="Copy it again, as one line",
        )

    def _found(self) -> str | None:
        if self.value is not None:
            return self.value.strip()
        if self.file is not None:
            return self._from_file(Path(self.file))
        key = os.environ.get(self.environment) if self.environment else None
        return key and key.strip()

    def require(self, where: str) -> str:
        key = self.read()
        if key:
            return key
        names = f"the environment variable {self.environment}, or " if self.environment else ""
        raise BadInput(
            "there is no API key", where=where, next_step=f"Set {names}api_key_file or api_key"
        )

    def hidden(self, text: str) -> str:
        """A server's text without the key, which some repeat in their errors."""
        key = self.read()
        return text.replace(key, "***") if key else text

    def _from_file(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"the API key file cannot be read ({type(error).__name__})",
                where=str(file),
                next_step="Name a file that holds only the key",
            ) from None
