"""Append-only output of a run in its own folder, or in a local folder that is copied to a bucket."""

import shutil
import tempfile
from pathlib import Path

from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote


class Spool:
    """A folder of files that grow.

    Objects in a bucket cannot be appended to, so each `flush` uploads the files that have grown as new objects.

    Attributes:
      folder: The folder to append in: the given one, or a local folder in its stead.
    """

    def __init__(self, folder: Path, *resumed: str) -> None:
        """Open a spool for files of `folder`; files named in `resumed` are fetched from the bucket where it has them."""
        self._target, self._remote = folder, is_remote(folder)
        self._sizes: dict[Path, int] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="bertfam-")) if self._remote else folder
        if self._remote:
            buckets.fetch(folder, [name for name in resumed if (folder / name).is_file()], self.folder)

    def flush(self) -> None:
        """Upload what has been written, and return when it is in the bucket; raise UserError if that fails."""
        if self._remote:
            for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
                content = path.read_bytes()
                if self._sizes.get(path) != len(content):
                    buckets.write(self._target / path.relative_to(self.folder).as_posix(), content)
                    self._sizes[path] = len(content)

    def close(self) -> None:
        """Remove the local folder that stood in for one in a bucket."""
        if self._remote:
            shutil.rmtree(self.folder, ignore_errors=True)
