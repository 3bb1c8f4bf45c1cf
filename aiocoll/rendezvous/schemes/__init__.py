"""The schemes of init_method, one file each, found by name; the rule: a file offers ``async def meet(request)``."""
