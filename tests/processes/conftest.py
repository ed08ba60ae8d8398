"""The shipped dataset and the tiny one cut from it, as the tests of datasets have them."""

from tests.datasets.conftest import shipped, tiny_dataset

__all__ = ["shipped", "tiny_dataset"]
