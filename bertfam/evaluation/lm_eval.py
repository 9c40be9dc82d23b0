"""Adapter of causal LMs and encoder-decoders to EleutherAI's lm-evaluation-harness (`pip install 'bertfam[lm_eval]'`).

    python -m bertfam.evaluation.lm_eval run --model bertfam --model_args model_dir=DIR --tasks TASK

is the harness's own command line with the model "bertfam". Prompts, few-shot examples, metrics and tables are the harness's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm
from typing_extensions import override

from bertfam.api import LanguageModel, load
from bertfam.decoding.strategies import Greedy, Limits, Sample
from bertfam.errors import UserError
from bertfam.evaluation.target_scores import score_targets

try:
    from lm_eval import utils
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise UserError("the harness is not installed: pip install 'bertfam[lm_eval]'") from error

_LONGEST = 2048  # tokens of a text, for models that read any number
_NEW_TOKENS = 256  # of a generated text, where a task names no number
_CHUNK = 256  # requests between two steps of the progress bar


@register_model("bertfam")
class BertfamLM(TemplateLM):
    """Model of the harness by a model folder of bertfam or of Hugging Face."""

    def __init__(self, model_dir: str, step: int | None = None, batch_size: int | str = 32, **_: Any) -> None:
        """Load the model.

        Args:
          model_dir: MODEL_DIR or Hugging Face folder.
          step: Step of the checkpoint; None: the newest.
          batch_size: Texts at a time; "auto": 32.

        Raises:
          UserError: There is no such model, or it is an encoder.
        """
        super().__init__()
        model = load(model_dir, step=step)
        if not isinstance(model, LanguageModel):
            raise UserError(f"{model_dir} holds an encoder, and the harness scores causal LMs and encoder-decoders")
        if model.ends.start is None:
            raise UserError(f"{model_dir}: the vocabulary has no token that begins a text; choose a model with one")
        self._model = model
        self._batch_size = int(batch_size) if str(batch_size).isdecimal() else 32
        self._is_causal = model.config.kind == "decoder"
        self.backend = "causal" if self._is_causal else "seq2seq"
        self.max_length = model.config.max_length or _LONGEST

    @property
    @override
    def eot_token_id(self) -> int:
        start = self._model.ends.start
        assert start is not None
        return start

    @property
    @override
    def tokenizer_name(self) -> str:
        return self._model.vocabulary.fingerprint

    @override
    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        framed = add_special_tokens is not False
        tokens = self._model.vocabulary.encode_prompt(string, frame=framed and not self._is_causal).ids.tolist()
        has_start = framed and self._is_causal and self._model.config.start is not None
        return [self.eot_token_id, *tokens] if has_start else tokens

    @override
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        found = list[tuple[float, bool]]()
        # The target's forced first token, such as BART's, is given and not scored.
        forced = [] if self._is_causal or self._model.ends.first is None else [self._model.ends.first]
        with tqdm(total=len(requests), desc="log-likelihoods", disable=disable_tqdm) as progress:
            for begin in range(0, len(requests), _CHUNK):
                pairs = [self._fitted(context, target, len(forced)) for _, context, target in requests[begin : begin + _CHUNK]]
                inputs, targets = zip(*((one, [*forced, *two]) for one, two in pairs), strict=True)
                scores = score_targets(
                    self._model,
                    [np.array(one, np.int32) for one in inputs],
                    [np.array(one, np.int32) for one in targets],
                    forced=len(forced),
                    batch_size=self._batch_size,
                )
                found += zip(scores.log_likelihoods.tolist(), scores.greedy.tolist(), strict=True)
                progress.update(len(pairs))
        return found

    def _fitted(self, context: list[int], target: list[int], forced: int) -> tuple[list[int], list[int]]:
        """Return a context and its target without what the model cannot read: the begin of a causal LM's context, or the ends."""
        if self._is_causal:
            target = target[-self.max_length :]
            return context[-(self.max_length + 1 - len(target)) :], target
        return context[: self.max_length], target[: self.max_length - forced]

    @override
    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows, owners = list[tuple[Any, list[int], list[int]]](), list[int]()
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            rolling = utils.get_rolling_token_windows(
                token_list=tokens, prefix_token=self.eot_token_id, max_seq_len=self.max_length, context_len=1
            )
            for window in rolling:
                context, target = utils.make_disjoint_window(window)
                windows.append((("", ""), context, target))
                owners.append(number)
        scores = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        sums = np.bincount(owners, weights=[score for score, _ in scores], minlength=len(requests))
        return [float(total) for total in sums]

    @override
    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        return [self._generated(*request.args) for request in tqdm(requests, desc="texts", disable=disable_tqdm)]

    def _generated(self, context: str, options: dict[str, Any]) -> str:
        """Return the text that follows a context, up to the first of its stop texts."""
        half = self.max_length // 2
        new = min(int(options.get("max_gen_toks", _NEW_TOKENS)), half if self._is_causal else self.max_length)
        tokens = self.tok_encode(context)
        tokens = tokens[-(self.max_length - new) :] if self._is_causal else tokens[: self.max_length]
        temperature = float(options.get("temperature", 1.0))
        samples = bool(options.get("do_sample")) and temperature > 0
        strategy = Sample(temperature, int(options.get("top_k", 0)), float(options.get("top_p", 1.0))) if samples else Greedy()
        prompt = np.array(tokens, np.int32)
        ((text,),) = self._model.generate([prompt], strategy, Limits(max_new_tokens=new), batch_size=1)
        found = text.text
        if self._is_causal:
            found = found[len(self._model.vocabulary.decode(tokens, skip_special=True)) :]
        until = options.get("until") or []
        ends = [place for stop in ([until] if isinstance(until, str) else until) if stop and (place := found.find(stop)) >= 0]
        return found[: min(ends, default=len(found))]


def main() -> None:
    """Run the harness's command line."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
