"""The explorer: a local web page. Ref: docs/explore.md"""
