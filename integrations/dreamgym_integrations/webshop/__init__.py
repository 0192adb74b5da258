"""The shop of WebShop (Yao et al., 2022) in pure Python: catalogue, search, pages, goals and reward.

It answers as the authors' text environment does, without its Java, browser templates and tagger.
"""
