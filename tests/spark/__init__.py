"""Tests of the Spark pipeline. They share one session."""
