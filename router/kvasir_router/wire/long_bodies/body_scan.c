// A JSON object's outline, read in one pass as its bytes come: where its members are and how many
// values they hold. Strict as RFC 8259 is, but for UTF-8, which whoever decodes a member judges.
//
// Nothing is allocated and nothing is recursive: memory is one `struct scan`, whatever is nested or
// repeated, and each byte is looked at once. The caller may stop and go on at any byte.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MAX_DEPTH = 512, MAX_NAMES = 48, MAX_NAME = 48, MAX_ELEMENTS = 4096, MAX_STRINGS = 1024 };

// Strings that are noted: values at least so long and so deep, as images and sound are.
enum { LONG_STRING = 256, STRING_DEPTH = 5 };

enum { READING, WHOLE, NOT_JSON, TOO_DEEP, NO_OBJECT, ESCAPED_NAME };

enum state {
  VALUE,            // a value
  FIRST_VALUE,      // a value, or the end of an array
  FIRST_NAME,       // a name, or the end of an object
  NAME,             // a name
  COLON,
  AFTER,            // a comma, or the end of what the value is in
  STRING,
  ESCAPE,           // behind a backslash
  HEX,              // of \uXXXX
  LITERAL,          // the rest of true, false or null
  MINUS, ZERO, INTEGER, POINT, FRACTION, EXPONENT, EXPONENT_SIGN, EXPONENT_DIGITS,
  END,              // nothing but white space
};

struct span {
  uint64_t start, end;   // bytes; end 0 = absent
  uint64_t values;       // values in it, itself included
};

// An element of the array that member 0 is, and its own member `content` if it is an object.
struct part {
  uint32_t start, end, values;
  uint32_t content_start, content_end, content_values;
};

struct text {
  uint32_t start, end;
};

struct scan {
  uint64_t at;           // bytes read
  uint64_t values;
  uint32_t status, depth, elements;
  uint32_t names, strings;
  struct span members[MAX_NAMES];
  struct part parts[MAX_ELEMENTS];
  struct text texts[MAX_STRINGS];
  // Private from here on.
  uint64_t string_start, value_start, value_count, part_start, part_count, content_start, content_count;
  const char *rest;
  int32_t member;        // of the object, whose value is being read; -1 = another
  uint32_t state, hex, in_name, name_size, is_content;
  struct part part;
  uint8_t is_array[MAX_DEPTH];
  char name[MAX_NAME];
  char known[MAX_NAMES][MAX_NAME];
};

uint64_t scan_size(void) { return sizeof(struct scan); }

// `names` are `count` strings, each with a zero behind it. The first one's elements are noted.
void scan_begin(struct scan *s, const char *names, uint32_t count) {
  memset(s, 0, offsetof(struct scan, parts));
  memset(&s->string_start, 0, sizeof *s - offsetof(struct scan, string_start));
  s->names = count;
  s->member = -1;
  for (uint32_t i = 0; i < count; i++) {
    strncpy(s->known[i], names, MAX_NAME - 1);
    names += strlen(names) + 1;
  }
}

static int is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static int is_hex(uint8_t c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Where the string ends, is escaped, or holds what it may not.
static const uint8_t *plain(const uint8_t *p, const uint8_t *end) {
#if defined(__SSE2__)
  const __m128i quote = _mm_set1_epi8('"'), back = _mm_set1_epi8('\\');
  const __m128i control = _mm_set1_epi8(0x1f);
  for (; end - p >= 16; p += 16) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, back));
    hit = _mm_or_si128(hit, _mm_cmpeq_epi8(_mm_min_epu8(v, control), v));
    int mask = _mm_movemask_epi8(hit);
    if (mask) return p + __builtin_ctz((unsigned)mask);
  }
#endif
  while (p < end && *p != '"' && *p != '\\' && *p >= 0x20) p++;
  return p;
}

// Whether the next thing is an element to note, or a member of one.
static int at_element(const struct scan *s) {
  return s->depth == 2 && s->member == 0 && s->is_array[1];
}

static int in_element(const struct scan *s) {
  return s->depth == 3 && s->member == 0 && s->is_array[1] && !s->is_array[2];
}

static void value_begins(struct scan *s, uint64_t at) {
  if (s->depth == 1) {
    s->value_start = at;
    s->value_count = s->values;
  } else if (at_element(s)) {
    memset(&s->part, 0, sizeof s->part);
    s->part_start = at;
    s->part_count = s->values;
  } else if (in_element(s)) {
    s->content_start = at;
    s->content_count = s->values;
  }
  s->values++;
}

static void element_ends(struct scan *s, uint64_t at) {
  if (s->elements == MAX_ELEMENTS || at > UINT32_MAX) return;
  s->part.start = (uint32_t)s->part_start;
  s->part.end = (uint32_t)at;
  s->part.values = (uint32_t)(s->values - s->part_count);
  s->parts[s->elements++] = s->part;
}

// `at`: behind its last byte.
static void value_ends(struct scan *s, uint64_t at) {
  s->state = AFTER;
  if (s->depth == 0) {
    s->state = END;
  } else if (s->depth == 1) {
    if (s->member >= 0) {
      struct span *m = &s->members[s->member];
      m->start = s->value_start;
      m->end = at;
      m->values = s->values - s->value_count;
    }
  } else if (at_element(s)) {
    element_ends(s, at);
  } else if (in_element(s) && s->is_content) {
    s->part.content_start = (uint32_t)s->content_start;
    s->part.content_end = (uint32_t)at;
    s->part.content_values = (uint32_t)(s->values - s->content_count);
  }
}

static int is_name(const struct scan *s, const char *name) {
  return strlen(name) == s->name_size && !memcmp(name, s->name, s->name_size);
}

static void name_ends(struct scan *s) {
  s->state = COLON;
  s->in_name = 0;
  if (s->depth == 3) s->is_content = is_name(s, "content");
  if (s->depth != 1) return;
  s->member = -1;
  for (uint32_t i = 0; i < s->names; i++)
    if (is_name(s, s->known[i])) s->member = (int32_t)i;
  if (s->member == 0) s->elements = 0;   // the last one of a name counts
}

static uint32_t opens(struct scan *s, int array) {
  if (s->depth == 0 && array) return NO_OBJECT;
  if (s->depth == MAX_DEPTH) return TOO_DEEP;
  s->is_array[s->depth++] = (uint8_t)array;
  s->state = array ? FIRST_VALUE : FIRST_NAME;
  return READING;
}

static uint32_t begin_value(struct scan *s, uint8_t c, uint64_t at) {
  if (s->depth == 0 && c != '{' && c != '[') return NO_OBJECT;
  value_begins(s, at);
  switch (c) {
    case '{': return opens(s, 0);
    case '[': return opens(s, 1);
    case '"': s->state = STRING; s->string_start = at; return READING;
    case 't': s->state = LITERAL; s->rest = "rue"; return READING;
    case 'f': s->state = LITERAL; s->rest = "alse"; return READING;
    case 'n': s->state = LITERAL; s->rest = "ull"; return READING;
    case '-': s->state = MINUS; return READING;
    case '0': s->state = ZERO; return READING;
  }
  s->state = INTEGER;
  return is_digit(c) ? READING : NOT_JSON;
}

// The state behind `c`, or NOT_JSON; -1 = the number has ended before it.
static int number(uint32_t state, uint8_t c) {
  int digit = is_digit(c), exponent = c == 'e' || c == 'E';
  switch (state) {
    case MINUS: return c == '0' ? ZERO : digit ? INTEGER : -2;
    case ZERO: return c == '.' ? POINT : exponent ? EXPONENT : digit ? -2 : -1;
    case INTEGER: return digit ? INTEGER : c == '.' ? POINT : exponent ? EXPONENT : -1;
    case POINT: return digit ? FRACTION : -2;
    case FRACTION: return digit ? FRACTION : exponent ? EXPONENT : -1;
    case EXPONENT: return digit ? EXPONENT_DIGITS : c == '+' || c == '-' ? EXPONENT_SIGN : -2;
    case EXPONENT_SIGN: return digit ? EXPONENT_DIGITS : -2;
    default: return digit ? EXPONENT_DIGITS : -1;
  }
}

// `at`: behind its quote.
static void text_ends(struct scan *s, uint64_t at) {
  int is_long = at - s->string_start >= LONG_STRING && s->depth >= STRING_DEPTH;
  if (!is_long || s->strings == MAX_STRINGS || at > UINT32_MAX) return;
  s->texts[s->strings].start = (uint32_t)s->string_start;
  s->texts[s->strings++].end = (uint32_t)at;
}

// Returns the bytes of the string that were read; the quote at its end is one of them.
static size_t string(struct scan *s, const uint8_t *p, const uint8_t *end, uint64_t at) {
  const uint8_t *stop = plain(p, end);
  size_t size = (size_t)(stop - p);
  if (s->in_name && s->depth <= 3 && size) {
    if (s->name_size + size < MAX_NAME) memcpy(s->name + s->name_size, p, size);
    s->name_size = s->name_size + size < MAX_NAME ? s->name_size + (uint32_t)size : MAX_NAME;
  }
  if (stop == end) return size;
  if (*stop == '"') {
    if (s->in_name) name_ends(s);
    else {
      text_ends(s, at + size + 1);
      value_ends(s, at + size + 1);
    }
  } else if (*stop == '\\') {
    if (s->in_name && s->depth == 1) s->status = ESCAPED_NAME;
    s->name_size = MAX_NAME;   // of what is not looked for
    s->state = ESCAPE;
  } else {
    s->status = NOT_JSON;
  }
  return size + 1;
}

static uint32_t after(struct scan *s, uint8_t c, uint64_t at) {
  int array = s->is_array[s->depth - 1];
  if (c == ',') {
    s->state = array ? VALUE : NAME;
  } else if (c == (array ? ']' : '}')) {
    s->depth--;
    value_ends(s, at + 1);
  } else {
    return NOT_JSON;
  }
  return READING;
}

static uint32_t name(struct scan *s, uint8_t c) {
  s->state = STRING;
  s->in_name = 1;
  s->name_size = 0;
  return c == '"' ? READING : NOT_JSON;
}

static uint32_t step(struct scan *s, uint8_t c, uint64_t at) {
  switch (s->state) {
    case VALUE: return begin_value(s, c, at);
    case FIRST_VALUE: return c == ']' ? after(s, c, at) : begin_value(s, c, at);
    case FIRST_NAME: return c == '}' ? after(s, c, at) : name(s, c);
    case NAME: return name(s, c);
    case COLON: s->state = VALUE; return c == ':' ? READING : NOT_JSON;
    case AFTER: return after(s, c, at);
  }
  return NOT_JSON;   // behind the end
}

// Read the next `size` bytes; returns the status.
uint32_t scan_feed(struct scan *s, const uint8_t *bytes, uint64_t size) {
  const uint8_t *p = bytes, *end = bytes + size;
  uint64_t base = s->at;
  while (p < end && s->status == READING) {
    uint8_t c = *p;
    uint64_t at = base + (uint64_t)(p - bytes);
    switch (s->state) {
      case STRING:
        p += string(s, p, end, at);
        continue;
      case ESCAPE:
        if (c == 'u') s->hex = 4;
        else if (!c || !strchr("\"\\/bfnrt", c)) s->status = NOT_JSON;
        s->state = c == 'u' ? HEX : STRING;
        break;
      case HEX:
        if (!is_hex(c)) s->status = NOT_JSON;
        if (--s->hex == 0) s->state = STRING;
        break;
      case LITERAL:
        if (c != (uint8_t)*s->rest) s->status = NOT_JSON;
        else if (!*++s->rest) value_ends(s, at + 1);
        break;
      default:
        if (s->state >= MINUS && s->state <= EXPONENT_DIGITS) {
          int next = number(s->state, c);
          if (next >= 0) { s->state = (uint32_t)next; break; }
          if (next == -2) { s->status = NOT_JSON; break; }
          value_ends(s, at);
          continue;   // the byte belongs to what follows
        }
        if (!is_space(c)) s->status = step(s, c, at);
    }
    p++;
  }
  s->at = base + (uint64_t)(p - bytes);
  return s->status;
}

// Nothing follows; returns the status, READING never.
uint32_t scan_end(struct scan *s) {
  if (s->status == READING) s->status = s->state == END ? WHOLE : NOT_JSON;
  return s->status;
}
