"""`python -m localspec.worker`: started by `WorkerSession` only, its pipes are its language."""

from localspec.worker.child import main

main()
