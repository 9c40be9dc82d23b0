"""Where a run writes what grows while it trains: its own folder, or a folder on this machine where that lies in a bucket."""

import shutil
import tempfile
from pathlib import Path

from bertfam.storage import buckets
from bertfam.storage.buckets import is_remote


class Spool:
    """A folder to append in. Nothing is appended in a bucket: each `flush` writes the files anew there that have grown."""

    def __init__(self, folder: Path, *begun: str) -> None:
        """For files of `folder`; those that are `begun` are there to go on with, where the bucket has them."""
        self._target, self._remote = folder, is_remote(folder)
        self._sizes: dict[Path, int] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="bertfam-")) if self._remote else folder
        if self._remote:
            buckets.fetch(folder, [name for name in begun if (folder / name).is_file()], self.folder)

    def flush(self) -> None:
        """Returns when what is written lies in the bucket; raises UserError where it cannot."""
        if self._remote:
            for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
                content = path.read_bytes()
                if self._sizes.get(path) != len(content):
                    buckets.write(self._target / path.relative_to(self.folder).as_posix(), content)
                    self._sizes[path] = len(content)

    def close(self) -> None:
        """Removes the folder on this machine that stood for one in a bucket."""
        if self._remote:
            shutil.rmtree(self.folder, ignore_errors=True)
