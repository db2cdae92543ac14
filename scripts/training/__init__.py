"""Trains draft heads and small drafts for one target: data, features, trainers, evaluation, export.

Needs the extra `train` (PyTorch); `scripts/train_draft` is its command. PyTorch is imported only here.
"""
