"""Knowledge of pretrained models: cloze items, facts and pairs of sentences about bias."""
