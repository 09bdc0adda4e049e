"""What tests share: naive twins, stores, graphs, killing, remote servers."""
