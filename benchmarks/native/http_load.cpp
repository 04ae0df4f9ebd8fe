// `http_load PORT REQUESTS CONNECTIONS WARMUP SECONDS [OPENING]`: keeps CONNECTIONS requests in
// flight, the first of each connection begun evenly over OPENING seconds (0).
//
// REQUESTS is a file of requests, each a 4-byte little-endian length and that many bytes; a
// connection sends the next one as soon as its answer is complete. After WARMUP seconds the line
// `begin` is written, after SECONDS more the line `end`, then one line of JSON: what was completed
// between the two, latencies in microseconds (first_byte: from the start of a request to the first
// byte of its body; gap: between two reads of a stream with events in them), and errors: answers
// other than 200, streams without their [DONE], and connections lost within an answer, which are
// opened anew. Built with -DTLS it speaks TLS, and takes any certificate.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

#include <algorithm>
#include <string>
#include <vector>

namespace {

constexpr char kLastChunk[] = "\r\n0\r\n\r\n";
constexpr size_t kTail = sizeof kLastChunk - 1;
constexpr char kDone[] = "data: [DONE]";

struct Connection {
  int fd = -1;
#ifdef TLS
  SSL* tls = nullptr;
#endif
  const std::string* request = nullptr;
  size_t sent = 0;
  std::string head;
  std::string tail;  // the last bytes of a chunked body, for what is cut by a read's end
  bool in_body = false;
  bool chunked = false;
  bool ok = false;
  bool done = false;
  long left = 0;
  double started = 0;
  double last_event = 0;
};

std::vector<std::string> requests;
std::vector<Connection> connections;
std::vector<float> whole, first_byte, gap;
long answers = 0, events = 0, errors = 0;
size_t turn = 0;
int poller, port;

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

void fail(const char* what) {
  perror(what);
  exit(1);
}

void read_requests(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) fail(path);
  uint32_t size;
  while (fread(&size, 4, 1, file) == 1) {
    std::string request(size, '\0');
    if (fread(request.data(), 1, size, file) != size) fail(path);
    requests.push_back(std::move(request));
  }
  fclose(file);
  if (requests.empty()) fail(path);
}

void watch(Connection& c, int operation, bool writing) {
  epoll_event event{};
  event.events = writing ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = &c;
  epoll_ctl(poller, operation, c.fd, &event);
}

// As send(2) and recv(2) on a socket that does not block.
#ifdef TLS
SSL_CTX* make_context() {
  SSL_CTX* made = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return made;
}

void shake_hands(Connection& c) {
  static SSL_CTX* context = make_context();
  SSL_free(c.tls);
  c.tls = SSL_new(context);
  SSL_set_fd(c.tls, c.fd);
  if (SSL_connect(c.tls) != 1) fail("TLS");
}

ssize_t failed(Connection& c, int result) {
  const int error = SSL_get_error(c.tls, result);
  ERR_clear_error();
  if (error == SSL_ERROR_ZERO_RETURN) return 0;
  errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
  return -1;
}

ssize_t put(Connection& c, const char* data, size_t size) {
  const int n = SSL_write(c.tls, data, static_cast<int>(size));
  return n > 0 ? n : failed(c, n);
}

// One record at most: what follows it stays in the socket, where epoll sees it.
ssize_t get(Connection& c, char* data, size_t size) {
  const int n = SSL_read(c.tls, data, static_cast<int>(size));
  return n > 0 ? n : failed(c, n);
}
#else
void shake_hands(Connection&) {}

ssize_t put(Connection& c, const char* data, size_t size) {
  return send(c.fd, data, size, MSG_NOSIGNAL);
}

ssize_t get(Connection& c, char* data, size_t size) { return recv(c.fd, data, size, 0); }
#endif

// A lost connection is noticed when it is read.
void send_rest(Connection& c, bool waited) {
  while (c.sent < c.request->size()) {
    const size_t rest = c.request->size() - c.sent;
    const ssize_t n = put(c, c.request->data() + c.sent, rest);
    if (n <= 0) {
      if (errno == EAGAIN && !waited) watch(c, EPOLL_CTL_MOD, true);
      return;
    }
    c.sent += n;
  }
  if (waited) watch(c, EPOLL_CTL_MOD, false);
}

void start_request(Connection& c) {
  c.request = &requests[turn++ % requests.size()];
  c.sent = 0;
  c.head.clear();
  c.tail.clear();
  c.in_body = c.chunked = c.ok = c.done = false;
  c.started = now_us();
  c.last_event = 0;
  send_rest(c, false);
}

void open_connection(Connection& c) {
  c.fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(c.fd, reinterpret_cast<sockaddr*>(&address), sizeof address)) fail("connect");
  const int one = 1;
  setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  shake_hands(c);
  fcntl(c.fd, F_SETFL, O_NONBLOCK);
  watch(c, EPOLL_CTL_ADD, false);
  start_request(c);
}

void lose(Connection& c) {
  errors++;
  close(c.fd);
  open_connection(c);
}

void finish(Connection& c) {
  answers++;
  if (!c.ok || (c.chunked && !c.done)) errors++;
  whole.push_back(now_us() - c.started);
  start_request(c);
}

void read_head(Connection& c) {
  c.in_body = true;
  c.ok = c.head.compare(0, 12, "HTTP/1.1 200") == 0;
  c.left = -1;
  for (size_t at = c.head.find("\r\n"); at != std::string::npos; at = c.head.find("\r\n", at + 2)) {
    const char* line = c.head.c_str() + at + 2;
    if (strncasecmp(line, "content-length:", 15) == 0) c.left = atol(line + 15);
    if (strncasecmp(line, "transfer-encoding:", 18) == 0) c.chunked = true;
  }
  first_byte.push_back(now_us() - c.started);
}

void read_stream(Connection& c, const char* data, size_t size) {
  std::string joined = c.tail + std::string(data, size);
  long here = 0;
  // An event ends with an empty line; the tail holds at most one line end of an earlier one.
  for (size_t i = c.tail.empty() ? 1 : c.tail.size(); i < joined.size(); i++)
    here += joined[i] == '\n' && joined[i - 1] == '\n';
  if (memmem(joined.data(), joined.size(), kDone, sizeof kDone - 1)) c.done = true;
  events += here;
  if (here) {
    const double now = now_us();
    if (c.last_event) gap.push_back(now - c.last_event);
    c.last_event = now;
  }
  const size_t keep = std::min(joined.size(), std::max(kTail, sizeof kDone));
  c.tail.assign(joined, joined.size() - keep, keep);
  if (joined.size() >= kTail && joined.compare(joined.size() - kTail, kTail, kLastChunk) == 0)
    finish(c);
}

void read_body(Connection& c, const char* data, size_t size) {
  if (c.chunked) {
    if (size) read_stream(c, data, size);
  } else if ((c.left -= size) <= 0) {
    finish(c);
  }
}

void receive(Connection& c) {
  static char buffer[1 << 18];
  const ssize_t got = get(c, buffer, sizeof buffer);
  if (got <= 0) {
    if (got == 0 || errno != EAGAIN) lose(c);
    return;
  }
  if (c.in_body) {
    read_body(c, buffer, got);
    return;
  }
  c.head.append(buffer, got);
  const size_t end = c.head.find("\r\n\r\n");
  if (end == std::string::npos) return;
  const std::string body = c.head.substr(end + 4);
  c.head.resize(end);
  read_head(c);
  read_body(c, body.data(), body.size());
}

void run_until(double until) {
  epoll_event ready[1024];
  for (double now = now_us(); now < until; now = now_us()) {
    const int n = epoll_wait(poller, ready, 1024, static_cast<int>((until - now) / 1000) + 1);
    for (int i = 0; i < n; i++) {
      Connection& c = *static_cast<Connection*>(ready[i].data.ptr);
      if (ready[i].events & EPOLLOUT) send_rest(c, true);
      if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
    }
  }
}

void print(const char* name, std::vector<float>& values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values.empty() ? 0.0 : values[std::min<size_t>(values.size() * share, values.size() - 1)];
  };
  printf(", \"%s\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f}", name, at(0.5),
         at(0.9), at(0.99), at(1));
}

}  // namespace

int main(int count, char** arguments) {
  signal(SIGPIPE, SIG_IGN);
  if (count != 6 && count != 7) {
    fprintf(stderr, "usage: http_load PORT REQUESTS CONNECTIONS WARMUP SECONDS [OPENING]\n");
    return 2;
  }
  port = atoi(arguments[1]);
  read_requests(arguments[2]);
  connections.resize(atoi(arguments[3]));
  poller = epoll_create1(0);
  const double apart = count == 7 ? atof(arguments[6]) * 1e6 / connections.size() : 0;
  double next = now_us();
  for (Connection& c : connections) {
    run_until(next += apart);
    open_connection(c);
  }
  run_until(now_us() + atof(arguments[4]) * 1e6);
  answers = events = errors = 0;
  whole.clear();
  first_byte.clear();
  gap.clear();
  printf("begin\n");
  fflush(stdout);
  const double begin = now_us();
  run_until(begin + atof(arguments[5]) * 1e6);
  printf("end\n");
  fflush(stdout);
  printf("{\"seconds\": %.6f, \"answers\": %ld, \"events\": %ld, \"errors\": %ld",
         (now_us() - begin) / 1e6, answers, events, errors);
  print("whole", whole);
  print("first_byte", first_byte);
  print("gap", gap);
  printf("}\n");
}
