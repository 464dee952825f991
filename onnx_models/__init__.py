"""onnx_models: how well IREE compiles ONNX, model by model and device by device.

A case is one model on one device. It flows through these modules, each of which
imports only from those above it:

    outcomes      stages, failures, verdicts; `judge`
    catalog       the models          (catalogue/)
    devices       the devices         (devices/)
    conditions    where an expectation holds: version ranges, system, processor
    lists         one file of expectations, checked entry by entry
    expectations  what is known to fail and why (expectations/), and which entry decides
    cases         models x devices x expectations
    peers         what an earlier suite tests and passes, not verified (catalogue_facts/)
    compat        that suite's configurations as a device, a selection and expectations
    artifacts     where a case's files lie, and the stage cache
    tools         starts processes and says how they ended
    toolchain     finds the IREE tools
    sources       a model becomes a verified local file
    signature     a failure's name, the same wherever the fault is met (signatures.toml)
    machine       shares the machine, or gives it to one command alone
    inputs        seeded input tensors from a model's ports and facts
    reference     what onnxruntime computes, in a child process
    compare       the outputs against the reference
    stages        import, compile, run, compare
    retry         unexpected results are run again; flakes
    records       JSON lines of a run
    health        tells a broken machine from a broken IREE
    entries       a file of expectations as blocks of text
    update        rewrites expectations from what runs found
    flakes        cases whose result changes under one IREE
    explain       everything known of one case
    plugin, cli   pytest options, fixtures and hooks; `python -m onnx_models`
    test_models   the one conformance test
"""

__version__ = "0.1.0"
