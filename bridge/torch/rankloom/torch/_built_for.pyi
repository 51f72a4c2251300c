TORCH: str
