"""Rows of a run with its noise, from the token cache in its folder."""

from bertfam.config.state import preserve_gin
from bertfam.data import vocabularies
from bertfam.data.preview.batch_records import batch_records
from bertfam.data.preview.page import legend_html, row_html
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError
from bertfam.reports.run_folder import RunFolder
from bertfam.storage.untrusted import check_subfolder
from bertfam.training.model_dir import read_run
from bertfam.training.stages import stage_batches

_ROWS = 2


def noise_html(run: RunFolder) -> str:
    """Return the first rows of each stage of a run as HTML, without those of a stage that are the same.

    Raises:
      UserError: the folder has no token cache, or a file that they need is damaged.
    """
    with preserve_gin():
        own = read_run(run.path)
    cache_folder = run.path / "cache"
    if own.data.cache_dir or not cache_folder.is_dir():
        raise UserError(f"the token cache is not in the folder: bertfam preview --model_dir={run.path} shows the rows")
    check_subfolder(cache_folder)
    cache, vocabulary = TokenCache(cache_folder), vocabularies.load(run.path / "vocab")
    parts, seen = [], list[object]()
    for index, stage in enumerate(own.stages):
        data = stage.data(own.data)
        if data.corruption in seen:
            continue
        seen.append(data.corruption)
        source = stage_batches(own.data, own.stages, index, cache, vocabulary.token_ids, own.seed)
        classes = getattr(data.corpus, "classes", ())
        found, _ = batch_records(source, 0, _ROWS, vocabulary, cache, classes)
        title = f"<h4>Stage {index + 1}: {type(data.corruption).__name__}</h4>" if len(own.stages) > 1 else ""
        parts += [title, legend_html(found), *(row_html(row, place) for place, row in enumerate(found))]
    return "".join(parts)
