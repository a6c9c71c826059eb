"""Whose certificates a client of a broker believes: the system's, or those of a file that its address names."""

import ssl

from nerve.protocol.errors import BadInput


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Raises BadInput where the file cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise BadInput(
            f"the authorities in {ca_file} cannot be read: {error.strerror or error}",
            where="--broker",
            next_step="ca_file names a file of certificates in PEM form",
        ) from None
