"""What is known of each server: permits, health, speed, rates."""
