#include "callsite.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <string_view>

#include "foreign.hpp"
#include "page.hpp"
#include "writer.hpp"

namespace hangwatch::callsite {
namespace {

// Frames between a collective and the user's line are a dozen; a recursion that
// is deeper than this is not worth a training step's time.
constexpr int kMaxFrames = 100;
constexpr std::size_t kCodes = 2048;  // powers of two
constexpr std::size_t kLines = 4096;

// Since 3.9 and 3.11, exported by CPython, but outside the limited API.
using GetBack = PyFrameObject* (*)(PyFrameObject*);
using GetLasti = int (*)(PyFrameObject*);
GetBack g_get_back = nullptr;
GetLasti g_get_lasti = nullptr;
PyObject* g_name_f_back = nullptr;
PyObject* g_name_f_lasti = nullptr;

struct Prefixes {
  std::vector<std::string> internal;
  std::vector<std::string> program;
};
Prefixes* g_prefixes = nullptr;

enum class Code : std::uint32_t { unknown, user, internal, c10d };

// What a code object is, told once. The reference keeps its address its own.
struct CodeEntry {
  PyObject* code;
  Code kind;
  std::uint32_t op;
};
CodeEntry g_codes[kCodes];
std::size_t g_code_count = 0;

// Sites by code object and instruction, so that lines are computed once.
struct LineEntry {
  PyObject* code;
  int lasti;
  std::uint32_t site;
};
LineEntry g_lines[kLines];
std::size_t g_line_count = 0;
std::uint64_t g_forgotten = 0;  // how often all was forgotten

std::size_t slot_of(const void* address, std::size_t salt, std::size_t size) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) / 16 + salt * 0x9e37'79b1;
  return (bits ^ (bits >> 11)) & (size - 1);
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool starts_with_any(std::string_view text, const std::vector<std::string>& starts) {
  return std::any_of(starts.begin(), starts.end(),
                     [&](const std::string& start) { return starts_with(text, start); });
}

// Has no file, and people have not typed it: frozen modules, what torch.fx makes.
bool is_generated(std::string_view file) {
  if (!starts_with(file, "<")) return file.find("/torchinductor_") != std::string_view::npos;
  return !starts_with(file, "<stdin>") && !starts_with(file, "<string>") &&
         !starts_with(file, "<ipython-input") && !starts_with(file, "<python-input");
}

// The rule of hangwatch/agent/call_site.py and hangwatch/model/frames.py, on the same cases of a
// test.
bool is_internal(std::string_view file) {
  if (g_prefixes == nullptr) return is_generated(file);
  if (starts_with_any(file, g_prefixes->program)) return false;
  return is_generated(file) || starts_with_any(file, g_prefixes->internal);
}

// A text attribute; the view lives as long as `holder`. False with an exception set.
bool text_of(PyObject* object, const char* name, Ref& holder, std::string_view& text) {
  holder = Ref(PyObject_GetAttrString(object, name));
  if (!holder) return false;
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(holder.get(), &size);
  if (utf8 == nullptr) {
    if (foreign::is_set()) return false;
    // A file name that is no UTF-8 (surrogates) is told as far as it can be.
    PyErr_Clear();
    holder = Ref(PyUnicode_AsEncodedString(holder.get(), "utf-8", "replace"));
    char* bytes = nullptr;
    if (!holder || PyBytes_AsStringAndSize(holder.get(), &bytes, &size) != 0) return false;
    utf8 = bytes;
  }
  text = std::string_view(utf8, static_cast<std::size_t>(size));
  return true;
}

bool classify(PyObject* code, CodeEntry& entry) {
  Ref file_holder;
  Ref name_holder;
  std::string_view file;
  std::string_view name;
  if (!text_of(code, "co_filename", file_holder, file)) return false;
  entry.op = kNone;
  entry.kind = is_internal(file) ? Code::internal : Code::user;
  if (!ends_with(file, "/torch/distributed/distributed_c10d.py")) return true;
  entry.kind = Code::internal;
  if (!text_of(code, "co_name", name_holder, name)) return false;
  // Its private functions (_coalescing_manager) are no names that a user knows.
  if (!name.empty() && name.front() != '_' && name.front() != '<') {
    entry.kind = Code::c10d;
    entry.op = writer::intern(name);
  }
  return true;
}

const CodeEntry* lookup(PyObject* code) {
  std::size_t i = slot_of(code, 0, kCodes);
  while (g_codes[i].code != nullptr) {
    if (g_codes[i].code == code) return &g_codes[i];
    i = (i + 1) & (kCodes - 1);
  }
  CodeEntry entry{code, Code::unknown, kNone};
  if (!classify(code, entry)) return nullptr;
  if (g_code_count >= kCodes / 2) {
    // A program that makes code without end would fill any table.
    forget();
  }
  i = slot_of(code, 0, kCodes);
  while (g_codes[i].code != nullptr) i = (i + 1) & (kCodes - 1);
  Py_INCREF(code);
  g_codes[i] = entry;
  ++g_code_count;
  return &g_codes[i];
}

bool make_site(PyFrameObject* frame, PyObject* code, std::uint32_t& site) {
  Ref file_holder;
  Ref name_holder;
  std::string_view file;
  std::string_view name;
  if (!text_of(code, "co_filename", file_holder, file) ||
      !text_of(code, "co_name", name_holder, name)) {
    return false;
  }
  const int line = PyFrame_GetLineNumber(frame);
  site = writer::intern_site(file, static_cast<std::uint64_t>(line < 0 ? 0 : line), name);
  return true;
}

int lasti_of(PyFrameObject* frame) {
  if (g_get_lasti != nullptr) return g_get_lasti(frame);
  const Ref value(PyObject_GetAttr(reinterpret_cast<PyObject*>(frame), g_name_f_lasti));
  return value ? static_cast<int>(PyLong_AsLong(value.get())) : -1;
}

// `code` is a user's, so lookup() holds a reference to it.
bool site_of(PyFrameObject* frame, PyObject* code, std::uint32_t& site) {
  const int lasti = lasti_of(frame);
  if (PyErr_Occurred() != nullptr) return false;
  const auto salt = static_cast<std::size_t>(lasti);
  std::size_t i = slot_of(code, salt, kLines);
  while (g_lines[i].code != nullptr) {
    if (g_lines[i].code == code && g_lines[i].lasti == lasti) {
      site = g_lines[i].site;
      return true;
    }
    i = (i + 1) & (kLines - 1);
  }
  const std::uint64_t forgotten = g_forgotten;
  if (!make_site(frame, code, site)) return false;
  // That may have run code which came here: the place may be taken, or the reference gone.
  while (g_lines[i].code != nullptr) i = (i + 1) & (kLines - 1);
  if (g_line_count < kLines / 2 && forgotten == g_forgotten) {
    g_lines[i] = LineEntry{code, lasti, site};
    ++g_line_count;
  }
  return true;
}

PyFrameObject* back_of(PyFrameObject* frame) {
  if (g_get_back != nullptr) return g_get_back(frame);
  PyObject* back = PyObject_GetAttr(reinterpret_cast<PyObject*>(frame), g_name_f_back);
  if (back != Py_None) return reinterpret_cast<PyFrameObject*>(back);
  Py_DECREF(back);
  return nullptr;
}

}  // namespace

bool setup() {
  g_get_back = reinterpret_cast<GetBack>(dlsym(RTLD_DEFAULT, "PyFrame_GetBack"));
  g_get_lasti = reinterpret_cast<GetLasti>(dlsym(RTLD_DEFAULT, "PyFrame_GetLasti"));
  g_name_f_back = PyUnicode_InternFromString("f_back");
  g_name_f_lasti = PyUnicode_InternFromString("f_lasti");
  return g_name_f_back != nullptr && g_name_f_lasti != nullptr;
}

void set_prefixes(std::vector<std::string> internal, std::vector<std::string> program) {
  auto* before = g_prefixes;
  g_prefixes = new Prefixes{std::move(internal), std::move(program)};
  delete before;
  forget();
}

void forget() {
  ++g_forgotten;
  std::vector<PyObject*> codes;
  codes.reserve(g_code_count);
  for (CodeEntry& entry : g_codes) {
    if (entry.code != nullptr) codes.push_back(entry.code);
    entry = CodeEntry{};
  }
  for (LineEntry& entry : g_lines) entry = LineEntry{};
  g_code_count = 0;
  g_line_count = 0;
  for (PyObject* code : codes) Py_DECREF(code);  // may run code: the tables are empty by now
}

const void* caller() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return nullptr;
  return Ref(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame))).get();
}

bool find(Site& found) {
  found = Site{kNone, kNone, nullptr};
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  for (int depth = 0; frame != nullptr && depth < kMaxFrames; ++depth) {
    const Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    if (depth == 0) found.caller = code.get();
    const CodeEntry* entry = lookup(code.get());
    bool good = entry != nullptr;
    if (good && entry->kind == Code::user) {
      good = site_of(frame, code.get(), found.site);
      Py_DECREF(reinterpret_cast<PyObject*>(frame));
      return good;
    }
    if (good && entry->kind == Code::c10d) found.op = entry->op;
    PyFrameObject* back = good ? back_of(frame) : nullptr;
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
    if (!good || (back == nullptr && PyErr_Occurred() != nullptr)) return false;
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(frame));
  return true;
}

}  // namespace hangwatch::callsite
