from kithkin.cli import main

main()
