"""HTTP/1.1, SSE, forms and TLS as bytes; knows no fleet and no policy."""
