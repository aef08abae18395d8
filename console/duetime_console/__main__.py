"""Runs the console, as its settings say."""

from duetime_console.running import main

main()
