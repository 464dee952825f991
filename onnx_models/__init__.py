"""onnx_models: how well IREE compiles ONNX, model by model and device by device.

A case is one model on one device. It flows through these modules, each of which
imports only from those above it. Those that are set in serve one of the others;
"in a child" marks what runs in a process of its own, away from pytest's:

    outcomes            stages, failures, verdicts; `judge`
      versions          releases by name and by age
      files             hashes, sizes, what a file surely is, whole writes
      toml_files        reads TOML; whatever is wrong with a file is one line for its author
    catalog             the models          (catalogue/)
    devices             the devices         (devices/)
      conditions        where an expectation holds: version ranges, system, processor, driver
      lists             one file of expectations, checked entry by entry
    expectations        what is known to fail and why (expectations/), and which entry decides
    cases               models x devices x expectations
      peers             what an earlier suite tests and passes, not verified (catalogue_facts/)
    compat              that suite's configurations as a device, a selection and expectations
    artifacts           where a case's files lie, and the stage cache
      supervisor        runs one program and leaves nothing behind; a process of its own
    tools               starts processes and says how they ended
    toolchain           finds the IREE tools
      spellings         what older releases call a flag, or do not know yet (spellings.toml)
    machine             shares the machine, or gives it to one command alone
      cache             where fetched and made files are kept, and how one gets in
      store             downloaded files by content, shared by workers and machines
      routes            where the model zoo can be had, as a user configures it
      transfer          one file over HTTP: resumed, bounded, tried again
      hub               a file of the zoo, by whichever route has it
      archive           archives are hostile until proven otherwise
      zoo               the zoo's models and stored data sets as files
      wheels            one member of a published wheel
      skeletons         in a child: seeded weights for the topologies of the onnx package
    sources             a model becomes a verified local file
      selection         filters over the catalogue, and totals
      shards            splits a run over machines, by the models' names
      prefetch          many downloads at once
      upkeep            what lies in the cache, whether it is sound, what can go
      tensors           tensors as files, in the forms that the tools read and write
    inputs              seeded input tensors from a model's ports and facts
      inspection        what a model file declares
      inspection_child  in a child: reads the file
      file_facts        what files said of themselves, kept by content
      local             collection `local`: a file of the user
      stored_sets       the form of a stored data set
      pb_files          in a child: a stored data set becomes tensor files
      datasets          the zoo's stored data sets as inputs
      tolerance         the constants of the comparison
      noise             how right a reference is: policies, health, vacuity
      reference_data    a reference as values and as files
    reference           what onnxruntime computes, in a child process
      metrics           how far one array is from another
      semantics         in a child: how each output is to be judged
      probes            in a child: models that are slightly wrong on purpose
      ort               in a child: onnxruntime
      latency_child     in a child: how long onnxruntime takes
      reference_child   in a child: the reference itself
      float64_operators in a child: operators of the evaluation in float64
      float64_child     in a child: the model evaluated in float64
      matching          indices that may tie, rows that are a set
    compare             the outputs against the reference
      verdict           the comparison as the last command of commands.sh
      signature         a failure's name, the same wherever the fault is met (signatures.toml)
    stages              import, compile, run, compare
      latency           a measured latency and its noise, and when two differ
      benchmark         iree-benchmark-module in turn with onnxruntime, on request
    retry               unexpected results are run again; flakes
    records             JSON lines of a run
      migrations        schemas of records; lines of older files in today's form
      record_lines      a record file's lines; what is damaged or hostile is refused
      runs              whole runs as compressed files that never change
      states            what a record says of IREE, whatever was expected
      merge             the shards of one run
      difference        what changed between two runs, and why
      markdown          Markdown in which data is only text
      difference_report what changed, for a terminal, a comment and other programs
      junit             JUnit XML and its properties
    report              Markdown and text of a run, and of two
      history_tables    the tables of the history, and how a run's file becomes rows of them
    history             all runs of a folder as tables to ask
      changepoints      where a series of measurements changed for good
    dashboard           the static site (templates/, static/)
    health              tells a broken machine from a broken IREE
      entries           a file of expectations as blocks of text
    update              rewrites expectations from what runs found
    flakes              cases whose result changes under one IREE
    explain             everything known of one case
      environments      a virtual environment per published release (releases.toml)
    releases            one selection under several releases
    plugin              pytest hooks (options, fixtures, recorder)
      cli_options       options that several commands share
      cli_dashboard     the commands about the history
      cli_releases      the commands about releases and their toolchains
      cli_reports       the commands about finished runs
      cli_expectations  the commands about expectations
    cli                 `onnx-models`, `python -m onnx_models`
    test_models         the one conformance test
"""

__version__ = "0.1.0"
