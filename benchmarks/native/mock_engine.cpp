// A replica that costs next to nothing: `mock_engine PORT...` on 127.0.0.1, one thread, epoll.
//
// GET is answered with a list that holds the model `bench`; POST with a 500-byte completion, or,
// when the body holds "stream":true, with "max_tokens" events of 220 bytes, one every "seed"
// milliseconds, each in a chunk and a write of its own (0: one after the other, a chunk of each
// stream in turn).

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Connection {
  int fd;
  unsigned generation = 0;  // of its stream, so that timers of an earlier one are told apart
  std::string in;
  std::string out;
  long left = 0;
  long interval_ns = 0;
  long next_ns = 0;
  bool streaming = false;
};

struct Timer {
  long at;
  int fd;
  unsigned generation;
  bool operator>(const Timer& other) const { return at > other.at; }
};

std::unordered_map<int, Connection> connections;
std::priority_queue<Timer, std::vector<Timer>, std::greater<Timer>> timers;
std::deque<std::pair<int, unsigned>> eager;
std::string models, completion, stream_head, chunk, last;
int poller;
unsigned generations = 0;

long now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

std::string response(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string framed(const std::string& event) {
  char size[16];
  snprintf(size, sizeof size, "%zx\r\n", event.size());
  return size + event + "\r\n";
}

void prepare() {
  models = response(
      R"({"object":"list","status":"ok","version":"0.24.0","model_path":"bench","data":[{"id":"bench","object":"model","created":1,"owned_by":"mock","root":"bench","max_model_len":131072}]})");
  const std::string start =
      R"({"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":")";
  const std::string end =
      R"("},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}})";
  completion = response(start + std::string(500 - start.size() - end.size(), 'y') + end);
  stream_head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string event =
      R"(data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":")";
  const std::string tail = "\"},\"finish_reason\":null}]}\n\n";
  chunk = framed(event + std::string(220 - event.size() - tail.size(), 'x') + tail);
  last = framed("data: [DONE]\n\n") + "0\r\n\r\n";
}

void close_connection(int fd) {
  connections.erase(fd);
  close(fd);
}

void watch(Connection& c) {
  epoll_event event{};
  event.events = c.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
  event.data.fd = c.fd;
  epoll_ctl(poller, EPOLL_CTL_MOD, c.fd, &event);
}

bool flush(Connection& c) {
  while (!c.out.empty()) {
    const ssize_t sent = send(c.fd, c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN;
    c.out.erase(0, sent);
  }
  return true;
}

// False when the connection is gone.
bool write_out(Connection& c, const std::string& data) {
  const bool waiting = !c.out.empty();
  c.out += data;
  if (waiting) return true;
  if (!flush(c)) {
    close_connection(c.fd);
    return false;
  }
  if (!c.out.empty()) watch(c);
  return true;
}

void schedule(Connection& c) {
  if (c.interval_ns == 0) {
    eager.emplace_back(c.fd, c.generation);
  } else {
    c.next_ns += c.interval_ns;
    timers.push({c.next_ns, c.fd, c.generation});
  }
}

void step(int fd, unsigned generation) {
  const auto found = connections.find(fd);
  if (found == connections.end() || found->second.generation != generation) return;
  Connection& c = found->second;
  if (c.left-- > 0) {
    if (write_out(c, chunk)) schedule(c);
  } else {
    c.streaming = false;
    write_out(c, last);
  }
}

long number(const char* body, size_t size, const char* name) {
  const void* at = memmem(body, size, name, strlen(name));
  return at ? atol(static_cast<const char*>(at) + strlen(name)) : 0;
}

bool answer(Connection& c, const char* body, size_t size) {
  if (c.in.compare(0, 4, "POST") != 0) return write_out(c, models);
  const char wanted[] = "\"stream\":true";
  if (!memmem(body, size, wanted, sizeof wanted - 1)) return write_out(c, completion);
  c.streaming = true;
  c.generation = ++generations;
  c.left = number(body, size, "\"max_tokens\":");
  c.interval_ns = number(body, size, "\"seed\":") * 1000000L;
  c.next_ns = now_ns();
  if (!write_out(c, stream_head)) return false;
  schedule(c);
  return true;
}

void receive(int fd) {
  static char buffer[1 << 18];
  Connection& c = connections[fd];
  const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
  if (got <= 0) {
    if (got == 0 || errno != EAGAIN) close_connection(fd);
    return;
  }
  c.in.append(buffer, got);
  while (!c.in.empty()) {
    const size_t head = c.in.find("\r\n\r\n");
    if (head == std::string::npos) return;
    size_t length = 0;
    for (size_t at = c.in.find("\r\n"); at < head; at = c.in.find("\r\n", at + 2))
      if (strncasecmp(c.in.c_str() + at + 2, "content-length:", 15) == 0)
        length = strtoul(c.in.c_str() + at + 17, nullptr, 10);
    const size_t whole = head + 4 + length;
    if (c.in.size() < whole) return;
    if (!answer(c, c.in.data() + head + 4, length)) return;
    c.in.erase(0, whole);
  }
}

int listen_on(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) || listen(fd, 4096)) {
    perror("mock_engine: cannot listen");
    exit(1);
  }
  return fd;
}

void accept_all(int listener) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
    if (fd < 0) return;
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connections[fd].fd = fd;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
}

int timeout_ms() {
  if (!eager.empty()) return 0;
  if (timers.empty()) return -1;
  const long wait = timers.top().at - now_ns();
  return wait <= 0 ? 0 : static_cast<int>((wait + 999999) / 1000000);
}

void run_timers() {
  const long now = now_ns();
  while (!timers.empty() && timers.top().at <= now) {
    const Timer timer = timers.top();
    timers.pop();
    step(timer.fd, timer.generation);
  }
  for (size_t n = eager.size(); n > 0; n--) {
    const auto [fd, generation] = eager.front();
    eager.pop_front();
    step(fd, generation);
  }
}

}  // namespace

int main(int count, char** arguments) {
  prepare();
  poller = epoll_create1(0);
  std::vector<int> listeners;
  for (int i = 1; i < count; i++) {
    listeners.push_back(listen_on(atoi(arguments[i])));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = listeners.back();
    epoll_ctl(poller, EPOLL_CTL_ADD, listeners.back(), &event);
  }
  const int last_listener = listeners.empty() ? -1 : listeners.back();
  epoll_event events[1024];
  for (;;) {
    const int n = epoll_wait(poller, events, 1024, timeout_ms());
    for (int i = 0; i < n; i++) {
      const int fd = events[i].data.fd;
      if (fd <= last_listener && fd >= listeners.front()) {
        accept_all(fd);
        continue;
      }
      const auto found = connections.find(fd);
      if (found == connections.end()) continue;
      if (events[i].events & EPOLLOUT) {
        if (!flush(found->second)) {
          close_connection(fd);
          continue;
        }
        if (found->second.out.empty()) watch(found->second);
      }
      if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(fd);
    }
    run_timers();
  }
}
