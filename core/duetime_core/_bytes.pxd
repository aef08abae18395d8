# What the compiled twins share: numbers in byte buffers, and the CRC-32 of RocketMQ's records.
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

    static uint32_t dt_crc32(const uint8_t *at, int64_t size) {
        uint32_t crc = 0xFFFFFFFFu;
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
        return ~crc;
    }
    """
    # Big-endian, as in the log.
    int32_t load32 "dt_load32"(const uint8_t *at) nogil
    int64_t load64 "dt_load64"(const uint8_t *at) nogil
    void store32 "dt_store32"(uint8_t *at, int32_t value) nogil
    void store64 "dt_store64"(uint8_t *at, int64_t value) nogil
    # Protobuf's varint, and decimal digits; both return where the number ends.
    uint8_t *put_varint "dt_put_varint"(uint8_t *to, uint64_t number) nogil
    uint8_t *put_decimal "dt_put_decimal"(uint8_t *to, uint64_t number) nogil
    # Once in each module that takes CRCs, when it is imported.
    void crc_init "dt_crc_init"() nogil
    # As zlib.crc32; the log keeps its lower 31 bits.
    uint32_t crc32 "dt_crc32"(const uint8_t *at, int64_t size) nogil
