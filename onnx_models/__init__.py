"""onnx_models: how well IREE compiles ONNX, model by model and device by device.

A case is one model on one device. It flows through these modules, each of which
imports only from those above it:

    outcomes      stages, failures, verdicts; `judge`
    catalog       the models          (catalogue/)
    devices       the devices         (devices/)
    expectations  what is known to fail and why (expectations/)
    cases         models x devices x expectations
    peers         what an earlier suite tests and passes, not verified (catalogue_facts/)
    compat        that suite's configurations as a device, a selection and expectations
    artifacts     where a case's files lie, and the stage cache
    tools         starts processes and says how they ended
    toolchain     finds the IREE tools
    sources       a model becomes a verified local file
    inputs        seeded input tensors from a model's ports and facts
    reference     what onnxruntime computes, in a child process
    compare       the outputs against the reference
    stages        import, compile, run, compare
    records       JSON lines of a run
    plugin, cli   pytest options, fixtures and hooks; `python -m onnx_models`
    test_models   the one conformance test
"""

__version__ = "0.1.0"
