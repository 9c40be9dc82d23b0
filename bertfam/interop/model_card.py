"""Model card: README.md of an exported model, with the metadata that the Hugging Face hub reads."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

NAME = "README.md"
# By the end of a class's name: the hub's name of its task.
_TASKS = {
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}
# Markup inside a cell of a table; an underscore between letters or digits is none.
_MARKUP = re.compile(r"([\\`*{}\[\]|~$]|(?<![^\W_])_|_(?![^\W_]))")


@dataclass(frozen=True)
class ModelCard:
    """Model card of a model.

    Attributes:
      architecture: name of its class in transformers.
      facts: rows of its table, any texts.
      embeds: description of how SentenceTransformer embeds texts by it; None if it does not load the folder.
      base: folder or name of the model whose adapters the folder holds; None if it holds a whole model.
    """

    architecture: str
    facts: Mapping[str, str]
    embeds: str | None = None
    base: str | None = None

    def text(self) -> str:
        """Return the text of the file; facts are escaped, so that none of them is markup."""
        task = next((task for ending, task in _TASKS.items() if self.architecture.endswith(ending)), "feature-extraction")
        if self.architecture.startswith("XLNet") and task == "text-generation":
            task = "feature-extraction"  # it fills masks, by a query stream that no pipeline runs
        library, task = ("sentence-transformers", "sentence-similarity") if self.embeds else ("transformers", task)
        base = ""
        if self.base is not None:
            library, base = "peft", f"\nbase_model: {json.dumps(self.base)}"
        rows = "\n".join(f"| {escaped(name)} | {escaped(value)} |" for name, value in self.facts.items())
        return f"""---
library_name: {library}{base}
pipeline_tag: {task}
tags:
- bertfam
---

# {self.architecture}

Trained with bertfam.

| | |
|---|---|
{rows}

## Use

{self._use()}
{self._embedding()}"""

    def _use(self) -> str:
        if self.base is None:
            return f"""```python
from transformers import {self.architecture}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {self.architecture}.from_pretrained("FOLDER")
```"""
        return f"""The folder holds low-rank adapters and the head. BASE is the model that they were trained on.

```python
from peft import PeftModel
from transformers import {self.architecture}, AutoConfig, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
base = {self.architecture}.from_pretrained("BASE", config=AutoConfig.from_pretrained("FOLDER"))
model = PeftModel.from_pretrained(base, "FOLDER")
```"""

    def _embedding(self) -> str:
        if not self.embeds:
            return ""
        return f"""
Embeddings of texts, by {self.embeds}:

```python
from sentence_transformers import SentenceTransformer

SentenceTransformer("FOLDER").encode(["A text."])
```
"""


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it on one line, whatever it has of Markdown or HTML."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", line)
