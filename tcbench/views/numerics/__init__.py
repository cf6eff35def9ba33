"""Does low precision train like fp32?"""
