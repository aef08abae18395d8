# Shared by the compiled twins: numbers in byte buffers, and the CRC-32s of RocketMQ's records.
#
# CRC-32 takes 64 bytes a step where the processor multiplies without carries (PCLMULQDQ; checked when a module is
# imported, so that no compiler flag is needed), else eight bytes a step by tables. For 260 bytes, in ns: 14 and 100;
# zlib takes 145.
#
# Source: Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel 2009.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline int32_t dt_load32(const uint8_t *at) {
        uint32_t value; memcpy(&value, at, 4); return (int32_t)__builtin_bswap32(value);
    }
    static inline int64_t dt_load64(const uint8_t *at) {
        uint64_t value; memcpy(&value, at, 8); return (int64_t)__builtin_bswap64(value);
    }
    static inline void dt_store32(uint8_t *at, int32_t value) {
        uint32_t swapped = __builtin_bswap32((uint32_t)value); memcpy(at, &swapped, 4);
    }
    static inline void dt_store64(uint8_t *at, int64_t value) {
        uint64_t swapped = __builtin_bswap64((uint64_t)value); memcpy(at, &swapped, 8);
    }

    static inline uint8_t *dt_put_varint(uint8_t *to, uint64_t number) {
        for (; number >= 0x80; number >>= 7) *to++ = (uint8_t)(number | 0x80);
        *to++ = (uint8_t)number;
        return to;
    }
    static inline uint8_t *dt_put_decimal(uint8_t *to, uint64_t number) {
        uint8_t digits[20];
        int at = 20;
        do digits[--at] = (uint8_t)('0' + number % 10); while (number /= 10);
        memcpy(to, digits + at, 20 - at);
        return to + 20 - at;
    }

    /* Eight bytes a step (slicing-by-8): table k is the CRC of a byte followed by k zero bytes. */
    static uint32_t dt_crc_table[8][256];

    static void dt_crc_init(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
            dt_crc_table[0][byte] = crc;
        }
        for (uint32_t byte = 0; byte < 256; byte++)
            for (int table = 1; table < 8; table++) {
                uint32_t before = dt_crc_table[table - 1][byte];
                dt_crc_table[table][byte] = before >> 8 ^ dt_crc_table[0][before & 0xFF];
            }
    }

    static uint32_t dt_crc_go_on(uint32_t crc, const uint8_t *at, int64_t size) {
        for (; size >= 8; size -= 8, at += 8) {
            uint32_t low, high;
            memcpy(&low, at, 4); memcpy(&high, at + 4, 4);
            low ^= crc;
            crc = dt_crc_table[7][low & 0xFF] ^ dt_crc_table[6][low >> 8 & 0xFF]
                ^ dt_crc_table[5][low >> 16 & 0xFF] ^ dt_crc_table[4][low >> 24]
                ^ dt_crc_table[3][high & 0xFF] ^ dt_crc_table[2][high >> 8 & 0xFF]
                ^ dt_crc_table[1][high >> 16 & 0xFF] ^ dt_crc_table[0][high >> 24];
        }
        while (size-- > 0) crc = crc >> 8 ^ dt_crc_table[0][(crc ^ *at++) & 0xFF];
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    static int dt_crc_folds(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

    #define DT_FOLD(x, by, next) _mm_xor_si128(_mm_loadu_si128((const __m128i *)(next)), \
        _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)))

    /* Folds 64 bytes or more, a multiple of 16, to 16 bytes with the same CRC, started at 0. */
    __attribute__((target("pclmul,sse4.1")))
    static void dt_crc_fold(const uint8_t *at, int64_t size, uint8_t folded[16]) {
        const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
        const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        __m128i four[4];
        for (int n = 0; n < 4; n++) four[n] = _mm_loadu_si128((const __m128i *)at + n);
        four[0] = _mm_xor_si128(four[0], _mm_cvtsi32_si128(-1));
        for (at += 64, size -= 64; size >= 64; at += 64, size -= 64)
            for (int n = 0; n < 4; n++) four[n] = DT_FOLD(four[n], by_64, at + 16 * n);
        __m128i one = four[0];
        for (int n = 1; n < 4; n++) one = DT_FOLD(one, by_16, &four[n]);
        for (; size; at += 16, size -= 16) one = DT_FOLD(one, by_16, at);
        _mm_storeu_si128((__m128i *)folded, one);
    }
    #else
    static int dt_crc_folds(void) { return 0; }
    static void dt_crc_fold(const uint8_t *at, int64_t size, uint8_t folded[16]) { (void)at, (void)size, (void)folded; }
    #endif

    static int dt_crc_may_fold;

    static void dt_crc_start(void) { dt_crc_init(); dt_crc_may_fold = dt_crc_folds(); }

    static uint32_t dt_crc32(const uint8_t *at, int64_t size) {
        uint8_t folded[16];
        int64_t front = size & ~(int64_t)15;
        if (!dt_crc_may_fold || size < 64) return ~dt_crc_go_on(0xFFFFFFFFu, at, size);
        dt_crc_fold(at, front, folded);
        return ~dt_crc_go_on(dt_crc_go_on(0, folded, 16), at + front, size - front);
    }

    /* The CRC mark that ends a record's properties, and so the record: see duetime_format.record. */

    static inline int dt_mark_faults(const uint8_t *end, int64_t size) {
        int faults = end[-1] != 2;
        if (size < 20) return 20;
        if (size > 20) faults += end[-21] != 2;
        if (!faults && memcmp(end - 20, "__CRC32#\x01", 9) == 0) return 0;
        for (int n = 0; n < 9; n++) faults += end[n - 20] != (uint8_t)"__CRC32#\x01"[n];
        return faults;
    }
    static inline int dt_has_crc_mark(const uint8_t *properties, int64_t size) {
        return size > 20 && dt_mark_faults(properties + size, size) == 0;
    }
    static inline void dt_put_crc_digits(uint8_t *to, const uint8_t *record, int64_t size) {
        uint32_t crc = dt_crc32(record, size - 20) & 0x7FFFFFFF;
        for (int n = 0; n < 10; n++, crc /= 10) to[n] = (uint8_t)('0' + crc % 10);
    }
    static void dt_fill_crc_mark(uint8_t *record, int64_t size, int64_t properties_bytes) {
        if (properties_bytes >= 20 && dt_mark_faults(record + size, properties_bytes) == 0)
            dt_put_crc_digits(record + size - 11, record, size);
    }
    static int dt_matches_crc_mark(const uint8_t *record, int64_t size, int64_t properties_bytes) {
        uint8_t digits[10];
        int faults = properties_bytes < 20 ? 20 : dt_mark_faults(record + size, properties_bytes);
        if (faults > 1 || (!faults && memcmp(record + size - 11, "0000000000", 10) == 0)) return -1;
        if (faults) return 0;
        dt_put_crc_digits(digits, record, size);
        return memcmp(record + size - 11, digits, 10) == 0;
    }
    """
    enum:
        CRC_MARK_BYTES "20"
        CRC_ENDING_BYTES "21"
    # Big-endian, as in the log.
    int32_t load32 "dt_load32"(const uint8_t *at) nogil
    int64_t load64 "dt_load64"(const uint8_t *at) nogil
    void store32 "dt_store32"(uint8_t *at, int32_t value) nogil
    void store64 "dt_store64"(uint8_t *at, int64_t value) nogil
    # Protobuf's varint, and decimal digits; both return the end of the number.
    uint8_t *put_varint "dt_put_varint"(uint8_t *to, uint64_t number) nogil
    uint8_t *put_decimal "dt_put_decimal"(uint8_t *to, uint64_t number) nogil
    # Called once in each module that computes CRCs, on import.
    void crc_init "dt_crc_start"() nogil
    # As zlib.crc32; the log keeps its lower 31 bits.
    uint32_t crc32 "dt_crc32"(const uint8_t *at, int64_t size) nogil
    # The number of bytes of the mark that differ at the end of properties, which end at `end` and have `size` bytes
    # (1+).
    int mark_faults "dt_mark_faults"(const uint8_t *end, int64_t size) nogil
    # Whether the properties end with a CRC mark after others: its 21 bytes, with the 0x02 in front.
    bint has_crc_mark "dt_has_crc_mark"(const uint8_t *properties, int64_t size) nogil
    # Fills in the mark of a record of `size` bytes, if it has one.
    void fill_crc_mark "dt_fill_crc_mark"(uint8_t *record, int64_t size, int64_t properties_bytes) nogil
    # As record.matches_crc_mark; -1: it has no mark.
    int matches_crc_mark "dt_matches_crc_mark"(const uint8_t *record, int64_t size, int64_t properties_bytes) nogil
