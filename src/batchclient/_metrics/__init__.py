"""What a running client tells about itself: names of metrics, snapshots, the page for programs."""
