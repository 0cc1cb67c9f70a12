"""The state of each server: permits, health, speed, rates."""
