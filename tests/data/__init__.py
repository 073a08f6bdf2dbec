"""Tests of data loading, in the test process; consistency/test_data.py has those in processes of their own."""
