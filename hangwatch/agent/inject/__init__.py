"""Brings the agent into a process, and does its work there from first to last."""
