"""`make conformance`: the tests of other libraries, run with maskwright in place of their attention.

Every test runs twice, with the library's attention and with maskwright, so that only differences count.
A difference must have a reason in the file of its suite; one without a reason is an error.

    python -m conformance                        all suites
    python -m conformance onnx transformers      these; a name stands for all suites that begin with it
    python -m conformance --suites DIR           with the suites that no package contains, from DIR

`suite.py` has the data of a suite and the comparison of its two runs, `sources.py` says where tests come
from, `runners.py` runs them, and `suites/` has one module per library. No test of another library is
part of this repository.
"""
