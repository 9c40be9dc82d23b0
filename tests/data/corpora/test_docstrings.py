"""Prose of docstrings: sections, markup and code are removed."""

from bertfam.data.corpora.python_docs.docstrings import clean, sentences_of

NUMPY_STYLE = """
    Return the mean of an array, as
    ``numpy.mean`` does. See :func:`~numpy.std` and `the guide <https://numpy.org>`_ for more [1]_.

    .. deprecated:: 1.2
       Use another function instead.

    Parameters
    ----------
    a : array_like
        Numbers that are averaged. They may be **nested**
        to any depth.
    axis : int, optional

    Returns
    -------
    float
        The mean of all numbers.

    See Also
    --------
    median, std, var

    Notes
    -----
    The mean is, with weights ``w``::

        total = sum(w * x)

    which is not a robust estimate.

    .. math:: \\frac{a}{b}

    - First list item here.
    - Second list item
      goes on here.

    =====  =======================
    name   a table of several words
    =====  =======================

    Examples
    --------
    >>> mean([1, 2])
    an output of many words

    References
    ----------
    .. [1] A. Author, "A title of words".
"""


def test_numpy_style():
    assert clean(NUMPY_STYLE) == [
        "Return the mean of an array, as numpy.mean does.",
        "See std and the guide for more .",
        "Use another function instead.",
        "Numbers that are averaged.",
        "They may be nested to any depth.",
        "The mean of all numbers.",
        "The mean is, with weights w:",
        "which is not a robust estimate.",
        "First list item here.",
        "Second list item goes on here.",
    ]


def test_google_and_sphinx_style():
    assert clean(
        """Runs the train step once.

        ```python
        step = make_a_step_of_words()
        ```

        Args:
          state (State): What is updated by it.
          batch: The rows to
            learn from here.
          long_name:
            Text on the next line.

        :param x: The value to print.
        :rtype: a type of words
        """
    ) == [
        "Runs the train step once.",
        "What is updated by it.",
        "The rows to learn from here.",
        "Text on the next line.",
        "The value to print.",
    ]


def test_code_and_fragments_are_removed():
    assert clean("f(x) = g(y) + h(z) for all") == []
    assert clean("Too short.") == [] and clean("See https://example.com for that.") == []


def test_docstrings_of_every_depth_come_in_the_order_of_the_file():
    source = '''"""The module of it."""
if True:
    class A:
        """The first class here."""
        def f(self):
            """The method of it."""
            async def g():
                """The innermost of all."""
    try:
        def h(): """A function in try."""
    except ValueError:
        pass
def last():
    r"""The last one here."""
x = """Not a docstring here."""
'''
    assert [sentence for (sentence,) in sentences_of(source.encode())] == [
        "The module of it.",
        "The first class here.",
        "The method of it.",
        "The innermost of all.",
        "A function in try.",
        "The last one here.",
    ]


def test_unparsable_source_returns_none(recwarn):
    assert sentences_of(b'"""A text here."""\nprint "x"') is None
    assert sentences_of(b'"""A text here."""\n\0') is None
    assert sentences_of(b'# -*- coding: latin-1 -*-\n"""Caf\xe9 text for us."""') == [["Café text for us."]]
    assert sentences_of(b'"""Some text for us."""\nx = "\\d" is 1') == [["Some text for us."]]
    assert sentences_of(b"x = 1") == []
    assert not [warning for warning in recwarn.list if issubclass(warning.category, SyntaxWarning | DeprecationWarning)]
