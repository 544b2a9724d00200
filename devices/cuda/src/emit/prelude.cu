// What every kernel is written over: WGSL's arithmetic, spelt for CUDA. Integers wrap, divisions by
// zero are defined, and every array knows its length and stays within it.
typedef unsigned int u32;

template <class T, int N> struct V {
  T e[N];
  T& operator[](u32 i) { return e[i < u32(N) ? i : N - 1]; }
  const T& operator[](u32 i) const { return e[i < u32(N) ? i : N - 1]; }
};
template <class T> struct Words {
  T* at;
  u32 length;
  T& operator[](u32 i) const { return at[i < length ? i : length - 1u]; }
};

inline float add(float a, float b) { return a + b; }
inline u32 add(u32 a, u32 b) { return a + b; }
inline int add(int a, int b) { return int(u32(a) + u32(b)); }
inline float sub(float a, float b) { return a - b; }
inline u32 sub(u32 a, u32 b) { return a - b; }
inline int sub(int a, int b) { return int(u32(a) - u32(b)); }
inline float mul(float a, float b) { return a * b; }
inline u32 mul(u32 a, u32 b) { return a * b; }
inline int mul(int a, int b) { return int(u32(a) * u32(b)); }
inline float div(float a, float b) { return a / b; }
inline u32 div(u32 a, u32 b) { return b == 0u ? a : a / b; }
inline int div(int a, int b) { return b == 0 ? a : b == -1 ? int(0u - u32(a)) : a / b; }
inline float rem(float a, float b) { return fmodf(a, b); }
inline u32 rem(u32 a, u32 b) { return b == 0u ? 0u : a % b; }
inline int rem(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
inline float neg(float a) { return -a; }
inline int neg(int a) { return int(0u - u32(a)); }
inline u32 shl(u32 a, u32 b) { return a << (b & 31u); }
inline int shl(int a, u32 b) { return int(u32(a) << (b & 31u)); }
inline u32 shr(u32 a, u32 b) { return a >> (b & 31u); }
inline int shr(int a, u32 b) { return a >> (b & 31u); }

#define SOUK_PAIRS(name)                                                                   \
  template <class T, int N> V<T, N> name(const V<T, N>& a, const V<T, N>& b) {             \
    V<T, N> r;                                                                             \
    for (int i = 0; i < N; i++) r.e[i] = name(a.e[i], b.e[i]);                             \
    return r;                                                                              \
  }                                                                                        \
  template <class T, int N> V<T, N> name(const V<T, N>& a, T b) {                          \
    V<T, N> r;                                                                             \
    for (int i = 0; i < N; i++) r.e[i] = name(a.e[i], b);                                  \
    return r;                                                                              \
  }                                                                                        \
  template <class T, int N> V<T, N> name(T a, const V<T, N>& b) {                          \
    V<T, N> r;                                                                             \
    for (int i = 0; i < N; i++) r.e[i] = name(a, b.e[i]);                                  \
    return r;                                                                              \
  }
SOUK_PAIRS(add)
SOUK_PAIRS(sub)
SOUK_PAIRS(mul)
SOUK_PAIRS(div)
SOUK_PAIRS(rem)

template <class T> inline T convert(float a) { return T(a); }
template <class T> inline T convert(int a) { return T(a); }
template <class T> inline T convert(u32 a) { return T(a); }
template <class T> inline T convert(bool a) { return T(a); }
// Truncated and held at the ends, as the hardware converts; what is no number is 0.
template <> inline int convert<int>(float a) { return __float2int_rz(a); }
template <> inline u32 convert<u32>(float a) { return __float2uint_rz(a); }
template <class T, class A, int N> inline V<T, N> convert(const V<A, N>& a) {
  V<T, N> r;
  for (int i = 0; i < N; i++) r.e[i] = convert<T>(a.e[i]);
  return r;
}

template <class T> struct Bits {};
template <> struct Bits<float> {
  static float of(float a) { return a; }
  static float of(int a) { return __int_as_float(a); }
  static float of(u32 a) { return __uint_as_float(a); }
};
template <> struct Bits<int> {
  static int of(float a) { return __float_as_int(a); }
  static int of(int a) { return a; }
  static int of(u32 a) { return int(a); }
};
template <> struct Bits<u32> {
  static u32 of(float a) { return __float_as_uint(a); }
  static u32 of(int a) { return u32(a); }
  static u32 of(u32 a) { return a; }
};

template <class R, class T> inline void fill(R& r, int& k, T a) { r.e[k++] = a; }
template <class R, class T, int N> inline void fill(R& r, int& k, const V<T, N>& a) {
  for (int i = 0; i < N; i++) r.e[k++] = a.e[i];
}
template <class R, class... A> inline R compose(A... a) {
  R r;
  int k = 0;
  (fill(r, k, a), ...);
  return r;
}
template <int N, class T> inline V<T, N> splat(T a) {
  V<T, N> r;
  for (int i = 0; i < N; i++) r.e[i] = a;
  return r;
}
template <int... I, class T, int N> inline V<T, sizeof...(I)> swizzle(const V<T, N>& a) {
  return V<T, sizeof...(I)>{{a.e[I]...}};
}

inline float abs_(float a) { return fabsf(a); }
inline int abs_(int a) { return a < 0 ? neg(a) : a; }
inline u32 abs_(u32 a) { return a; }
inline float min_(float a, float b) { return fminf(a, b); }
inline int min_(int a, int b) { return a < b ? a : b; }
inline u32 min_(u32 a, u32 b) { return a < b ? a : b; }
inline float max_(float a, float b) { return fmaxf(a, b); }
inline int max_(int a, int b) { return a > b ? a : b; }
inline u32 max_(u32 a, u32 b) { return a > b ? a : b; }
template <class T> inline T clamp_(T a, T low, T high) { return min_(max_(a, low), high); }
inline float sign_(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : 0.0f; }
inline int sign_(int a) { return (a > 0) - (a < 0); }
inline float fract_(float a) { return a - floorf(a); }
inline float saturate_(float a) { return __saturatef(a); }
inline float mix_(float a, float b, float t) { return a * (1.0f - t) + b * t; }
inline int dot4(u32 a, u32 b) { return __dp4a(int(a), int(b), 0); }
inline float step_(float edge, float a) { return a >= edge ? 1.0f : 0.0f; }
