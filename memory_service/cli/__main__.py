"""`python -m memory_service.cli` is `memplane`."""

from memory_service.cli.main import main

main()
