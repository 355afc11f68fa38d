/* Interprets the arithmetic of segments (segment.py): elementary operations over 32 lanes, and calls of Python for the others. */
#pragma GCC optimize("O3")
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <stddef.h>
#include <string.h>

enum { LANES = 32, CODE_WORDS = 5 };

/* A place holds the 32 values of one register, of a constant, of the mask, or of a result, which lies in memory of the run. */
typedef struct {
    PyObject *constant;
    npy_intp of; /* a register's number, MASK, or RESULT */
    int type, size;
} Place;
enum { MASK = -1, RESULT = -2 };

typedef struct {
    npy_intp into, place;
    int type;
} Output;

typedef struct {
    PyObject *function, *operands; /* operands: for every argument its type, then a place for each of the operations done at once */
    int asks_warp;
} External;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Py_ssize_t places, words, outputs, externals, bytes;
    Place *place;
    npy_int32 *code;
    Output *output;
    External *external;
} Program;

/* What a run works with: where the values of a place are, and the array that holds them, if there is one (borrowed). */
typedef struct {
    char *data;
    PyObject *array;
} Held;

typedef struct {
    npy_uint64 half[2];
} Wide;

#define KEY(op, type) ((op) * 32 + (type))
#define EACH(op, type, T, Z, value)                                      \
    case KEY(op, type): {                                                \
        const T *restrict x = (const void *)a, *restrict y = (const void *)b, *restrict w = (const void *)c; \
        Z *restrict z = (void *)d;                                       \
        for (int i = 0; i < LANES; i++) z[i] = (Z)(value);               \
        (void)y, (void)w;                                                \
        break;                                                           \
    }
/* The small types are computed in 32 bits without a sign, so that nothing overflows. */
#define UNSIGNED(type, T, W)                                             \
    EACH(ADD, type, T, T, (W)x[i] + (W)y[i])                             \
    EACH(SUB, type, T, T, (W)x[i] - (W)y[i])                             \
    EACH(MUL, type, T, T, (W)x[i] * (W)y[i])                             \
    EACH(SHL, type, T, T, y[i] < 8 * sizeof(T) ? (W)x[i] << y[i] : 0)    \
    EACH(SHR, type, T, T, y[i] < 8 * sizeof(T) ? (W)x[i] >> y[i] : 0)    \
    EACH(NEG, type, T, T, -(W)x[i])                                      \
    EACH(NOT, type, T, T, ~x[i])                                         \
    BITS(type, T)                                                        \
    COMPARED(type, T)                                                    \
    ORDERED(type, T)                                                     \
    CAST(type, T)                                                        \
    CHOICE(type, T)
#define CHOICE(type, T)                                                  \
    case KEY(WHERE, type): {                                             \
        const npy_bool *restrict p = (const void *)a;                    \
        const T *restrict x = (const void *)b, *restrict y = (const void *)c; \
        T *restrict z = (void *)d;                                       \
        for (int i = 0; i < LANES; i++) z[i] = p[i] ? x[i] : y[i];       \
        break;                                                           \
    }
#define BITS(type, T)                                                    \
    EACH(AND, type, T, T, x[i] & y[i])                                   \
    EACH(OR, type, T, T, x[i] | y[i])                                    \
    EACH(XOR, type, T, T, x[i] ^ y[i])
#define ORDERED(type, T)                                                 \
    EACH(MIN, type, T, T, x[i] < y[i] ? x[i] : y[i])                     \
    EACH(MAX, type, T, T, x[i] > y[i] ? x[i] : y[i])                     \
    COMPARISONS(type, T)
#define COMPARISONS(type, T)                                          \
    EACH(LT, type, T, npy_bool, x[i] < y[i])                             \
    EACH(LE, type, T, npy_bool, x[i] <= y[i])
#define COMPARED(type, T)                                                \
    EACH(EQ, type, T, npy_bool, x[i] == y[i])                            \
    EACH(NE, type, T, npy_bool, x[i] != y[i])
#define CAST(type, T)                                                    \
    EACH(CAST8, type, T, npy_uint8, x[i])                                \
    EACH(CAST16, type, T, npy_uint16, x[i])                              \
    EACH(CAST32, type, T, npy_uint32, x[i])                              \
    EACH(CAST64, type, T, npy_uint64, x[i])
#define SIGNED(type, T, U)                                               \
    ORDERED(type, T)                                                     \
    CAST(type, T)                                                        \
    EACH(SHR, type, T, T, (U)y[i] < 8 * sizeof(T) ? x[i] >> y[i] : x[i] < 0 ? -1 : 0)
#define FLOAT(type, T, U, MAGNITUDE)                                     \
    EACH(ADD, type, T, T, x[i] + y[i])                                   \
    EACH(SUB, type, T, T, x[i] - y[i])                                   \
    EACH(MUL, type, T, T, x[i] * y[i])                                   \
    EACH(DIV, type, T, T, x[i] / y[i])                                   \
    EACH(ABS, type, U, U, x[i] & (MAGNITUDE))                            \
    EACH(NEG, type, U, U, x[i] ^ ~(MAGNITUDE))                           \
    EACH(FMIN, type, T, T, x[i] < y[i] || (y[i] != y[i] && x[i] == x[i]) ? x[i] : y[i]) \
    EACH(FMAX, type, T, T, x[i] > y[i] || (y[i] != y[i] && x[i] == x[i]) ? x[i] : y[i]) \
    COMPARED(type, T)                                                    \
    COMPARISONS(type, T)

#define SMALLEST_NORMAL 1.17549435e-38f

/* a * b + c with one rounding, as `fma32` of ops/floating.py. */
static npy_float32 fused(npy_float32 a, npy_float32 b, npy_float32 c) {
    double p = (double)a * b, s = p + c;
    npy_uint64 bits;
    memcpy(&bits, &s, sizeof bits);
    if ((bits & 0x1FFFFFFF) == 0x10000000) { /* the midpoint of two float32: what the sum lost decides */
        double t = s - p, error = (p - (s - t)) + (c - t);
        if (error != 0 && s - s == 0) {
            bits += (error > 0) == (s > 0) ? 1 : -1;
            memcpy(&s, &bits, sizeof bits);
        }
    }
    return (npy_float32)s;
}

/* Bits of a float32 to those of the nearest bfloat16, as `f32_to_bf16` of formats.py. */
static npy_uint16 bfloat16(npy_uint32 bits) {
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
    return (npy_uint16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Bits of a float32 to the code of a narrow format, see `Narrow` of ops/convert.py. */
static npy_uint16 narrowed(const char *codes, npy_uint32 bits) { return (npy_uint8)codes[bits >> 15 & 0x1FFFE | ((bits & 0xFFFF) != 0)]; }

/* One operation on all lanes; 0 when there is no such. */
static int operate(int key, char *d, const char *a, const char *b, const char *c) {
    switch (key) {
        UNSIGNED(NPY_UINT8, npy_uint8, npy_uint32)
        UNSIGNED(NPY_UINT16, npy_uint16, npy_uint32)
        UNSIGNED(NPY_UINT32, npy_uint32, npy_uint32)
        UNSIGNED(NPY_UINT64, npy_uint64, npy_uint64)
        SIGNED(NPY_INT8, npy_int8, npy_uint8)
        SIGNED(NPY_INT16, npy_int16, npy_uint16)
        SIGNED(NPY_INT32, npy_int32, npy_uint32)
        SIGNED(NPY_INT64, npy_int64, npy_uint64)
        FLOAT(NPY_FLOAT32, npy_float32, npy_uint32, 0x7FFFFFFFu)
        FLOAT(NPY_FLOAT64, npy_float64, npy_uint64, 0x7FFFFFFFFFFFFFFFu)
        BITS(NPY_BOOL, npy_bool)
        EACH(FMA, NPY_FLOAT32, npy_float32, npy_float32, fused(x[i], y[i], w[i]))
        EACH(FLUSH, NPY_FLOAT32, npy_float32, npy_float32, x[i] * ((x[i] < 0 ? -x[i] : x[i]) >= SMALLEST_NORMAL ? 1.0f : 0.0f))
        EACH(BF16, NPY_UINT16, npy_uint16, npy_uint32, (npy_uint32)x[i] << 16)
        EACH(BF16X2, NPY_FLOAT32, npy_uint32, npy_uint32, (npy_uint32)bfloat16(x[i]) << 16 | bfloat16(y[i]))
        EACH(NARROW, NPY_FLOAT32, npy_uint32, npy_uint16, narrowed(c, x[i]) << 8 | narrowed(c, y[i]))
        EACH(EQ, NPY_BOOL, npy_bool, npy_bool, x[i] == y[i])
        EACH(NE, NPY_BOOL, npy_bool, npy_bool, x[i] != y[i])
        EACH(NOT, NPY_BOOL, npy_bool, npy_bool, !x[i])
        CAST(NPY_BOOL, npy_bool)
        CHOICE(NPY_COMPLEX128, Wide)
    default: return 0;
    }
    return 1;
}

static PyObject *new_array(npy_intp count, int type) { return PyArray_SimpleNew(1, &count, type); }

/* An array with the values of `count` places one after the other; a new reference. */
static PyObject *joined(const Held *held, PyObject *places, int type) {
    Py_ssize_t count = PyTuple_GET_SIZE(places) - 1;
    const Held *first = &held[PyLong_AsSsize_t(PyTuple_GET_ITEM(places, 1))];
    if (count == 1 && first->array && PyArray_TYPE((PyArrayObject *)first->array) == type) return Py_NewRef(first->array);
    PyObject *array = new_array(count * LANES, type);
    if (!array) return NULL;
    npy_intp size = PyArray_NBYTES((PyArrayObject *)array) / count;
    char *to = PyArray_DATA((PyArrayObject *)array);
    for (Py_ssize_t i = 0; i < count; i++) memcpy(to + i * size, held[PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i + 1))].data, size);
    return array;
}

/* Calls Python for `count` operations at once; their results follow each other from place `first` on. */
static int call(const Program *program, const External *one, Held *held, npy_intp first, npy_intp count, PyObject *warp) {
    Py_ssize_t n = PyTuple_GET_SIZE(one->operands), size = program->place[first].size;
    PyObject **given = PyMem_Calloc(n + 1, sizeof(PyObject *)), *result = NULL;
    if (!given) return PyErr_NoMemory(), -1;
    int failed = 0;
    given[0] = Py_NewRef(warp);
    for (Py_ssize_t i = 0; i < n && !failed; i++) {
        PyObject *places = PyTuple_GET_ITEM(one->operands, i);
        failed = !(given[i + 1] = joined(held, places, (int)PyLong_AsLong(PyTuple_GET_ITEM(places, 0))));
    }
    if (!failed) result = PyObject_Vectorcall(one->function, given + !one->asks_warp, n + one->asks_warp, NULL);
    for (Py_ssize_t i = 0; i <= n; i++) Py_XDECREF(given[i]);
    PyMem_Free(given);
    if (!result) return -1;
    PyArrayObject *flat = PyArray_Check(result) ? PyArray_GETCONTIGUOUS((PyArrayObject *)result) : NULL;
    failed = !flat || PyArray_NBYTES(flat) != count * LANES * size;
    if (failed && !PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%zd lanes of %zd bytes expected, got %R", count * LANES, size, result);
    for (npy_intp i = 0; i < count && !failed; i++)
        memcpy(held[first + i].data, (char *)PyArray_DATA(flat) + i * LANES * size, LANES * size);
    Py_XDECREF(flat);
    Py_DECREF(result);
    return -failed;
}

/* Where values are before the run: registers, constants and the mask; results in `memory`. */
static int hold(const Program *program, Held *held, char *memory, PyObject *registers, PyObject *mask) {
    for (Py_ssize_t i = 0; i < program->places; i++) {
        const Place *place = &program->place[i];
        held[i].array = NULL;
        if (place->of == RESULT) {
            held[i].data = memory;
            memory += LANES * place->size;
            continue;
        }
        if (place->constant) {
            held[i].array = place->constant;
            held[i].data = PyArray_DATA((PyArrayObject *)place->constant);
            continue;
        }
        PyObject *array = place->of == MASK ? mask : PyList_GET_ITEM(registers, place->of);
        if (!array || !PyArray_Check(array) || PyArray_NBYTES((PyArrayObject *)array) != LANES * place->size)
            return PyErr_Format(PyExc_TypeError, "place %zd (register %zd): 32 lanes of %d bytes expected", i, place->of, place->size), -1;
        if (!PyArray_IS_C_CONTIGUOUS((PyArrayObject *)array)) {
            PyObject *flat = (PyObject *)PyArray_GETCONTIGUOUS((PyArrayObject *)array);
            if (!flat) return -1;
            if (place->of == MASK) { /* the caller's, which stays as it is */
                held[i].data = memory;
                memcpy(memory, PyArray_DATA((PyArrayObject *)flat), LANES);
                memory += LANES;
                Py_DECREF(flat);
                continue;
            }
            PyList_SetItem(registers, place->of, flat); /* the same values */
            array = flat;
        }
        held[i].array = array;
        held[i].data = PyArray_DATA((PyArrayObject *)array);
    }
    return 0;
}

/* New references to what registers become: arrays that are there already, or new ones, in which results are then computed. */
static int prepare(const Program *program, Held *held, PyObject **outputs) {
    for (Py_ssize_t i = 0; i < program->outputs; i++) {
        const Output *output = &program->output[i];
        Held *from = &held[output->place];
        if (from->array && PyArray_TYPE((PyArrayObject *)from->array) == output->type) {
            outputs[i] = Py_NewRef(from->array);
        } else if (!(outputs[i] = new_array(LANES, output->type))) {
            return -1;
        } else if (!from->array && program->place[output->place].of == RESULT) {
            from->array = outputs[i];
            from->data = PyArray_DATA((PyArrayObject *)outputs[i]);
        }
    }
    return 0;
}

static int execute(const Program *program, Held *held, PyObject *warp) {
    for (const npy_int32 *c = program->code, *end = c + program->words; c < end; c += CODE_WORDS) {
        if (c[0] < 0) {
            if (call(program, &program->external[c[2]], held, c[1], c[3], warp) < 0) return -1;
        } else if (!operate(c[0], held[c[1]].data, held[c[2]].data, held[c[3]].data, held[c[4]].data)) {
            return PyErr_Format(PyExc_SystemError, "no operation %d", (int)c[0]), -1;
        }
    }
    return 0;
}

static PyObject *run(PyObject *self, PyObject *const *given, size_t flags, PyObject *names) {
    const Program *program = (const Program *)self;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (names || count < 2 || count > 3 || !PyList_Check(given[1]))
        return PyErr_Format(PyExc_TypeError, "a warp, its registers and perhaps a mask were expected");
    size_t fixed = program->places * sizeof(Held) + program->outputs * sizeof(PyObject *);
    char *memory = PyMem_Malloc(fixed + program->bytes + LANES);
    if (!memory) return PyErr_NoMemory();
    Held *held = (Held *)memory;
    PyObject **outputs = (PyObject **)(held + program->places);
    memset(outputs, 0, program->outputs * sizeof(PyObject *));
    int failed = hold(program, held, memory + fixed, given[1], count > 2 ? given[2] : NULL) < 0 || prepare(program, held, outputs) < 0 ||
                 execute(program, held, given[0]) < 0;
    for (Py_ssize_t i = 0; i < program->outputs && !failed; i++) { /* the same bits as another type */
        char *to = PyArray_DATA((PyArrayObject *)outputs[i]), *from = held[program->output[i].place].data;
        if (to != from) memcpy(to, from, LANES * program->place[program->output[i].place].size);
    }
    for (Py_ssize_t i = 0; i < program->outputs; i++)
        if (failed)
            Py_XDECREF(outputs[i]);
        else
            PyList_SetItem(given[1], program->output[i].into, outputs[i]);
    PyMem_Free(memory);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
    Program *program = (Program *)self;
    for (Py_ssize_t i = 0; i < program->places; i++) Py_VISIT(program->place[i].constant);
    for (Py_ssize_t i = 0; i < program->externals; i++) {
        Py_VISIT(program->external[i].function);
        Py_VISIT(program->external[i].operands);
    }
    return 0;
}

static int clear(PyObject *self) {
    Program *program = (Program *)self;
    for (Py_ssize_t i = 0; i < program->places; i++) Py_CLEAR(program->place[i].constant);
    for (Py_ssize_t i = 0; i < program->externals; i++) {
        Py_CLEAR(program->external[i].function);
        Py_CLEAR(program->external[i].operands);
    }
    return 0;
}

static void dealloc(PyObject *self) {
    Program *program = (Program *)self;
    PyObject_GC_UnTrack(self);
    clear(self);
    PyMem_Free(program->place);
    PyMem_Free(program->code);
    PyMem_Free(program->output);
    PyMem_Free(program->external);
    PyObject_GC_Del(self);
}

static PyTypeObject program_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "lane_program.Program",
    .tp_doc = "A segment: called with a warp, its registers and, where it was made with one, a mask.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Program, call),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = dealloc,
};

static int size_of(int type) {
    PyArray_Descr *element = PyArray_DescrFromType(type);
    if (!element) return -1;
    int size = (int)PyDataType_ELSIZE(element);
    Py_DECREF(element);
    return size;
}

/* Fills a program; everything that a run will use as an index is looked at here. */
static int fill(Program *program, PyObject *places, PyObject *code, PyObject *externals, PyObject *outputs) {
    program->place = PyMem_Calloc(PyTuple_GET_SIZE(places) + 1, sizeof(Place));
    program->code = PyMem_Calloc(PyBytes_GET_SIZE(code) + 1, 1);
    program->external = PyMem_Calloc(PyTuple_GET_SIZE(externals) + 1, sizeof(External));
    program->output = PyMem_Calloc(PyTuple_GET_SIZE(outputs) + 1, sizeof(Output));
    if (!program->place || !program->code || !program->external || !program->output) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        Place *place = &program->place[i];
        PyObject *of;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(places, i), "Oi", &of, &place->type) || (place->size = size_of(place->type)) < 0) return -1;
        if (PyArray_Check(of) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)of))
            place->constant = Py_NewRef(of);
        else if ((place->of = PyLong_AsSsize_t(of)) == -1 && PyErr_Occurred())
            return -1;
        if (place->of == RESULT) program->bytes += LANES * place->size;
        program->places++;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(externals); i++) {
        External *one = &program->external[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(externals, i), "OpO!", &one->function, &one->asks_warp, &PyTuple_Type, &one->operands)) return -1;
        Py_INCREF(one->function);
        Py_INCREF(one->operands);
        program->externals++;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++) {
        Output *output = &program->output[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, i), "nni", &output->into, &output->place, &output->type)) return -1;
        program->outputs++;
    }
    memcpy(program->code, PyBytes_AS_STRING(code), PyBytes_GET_SIZE(code));
    program->words = PyBytes_GET_SIZE(code) / sizeof(npy_int32);
    return 0;
}

PyDoc_STRVAR(program_doc,
             "program(places, code, externals, outputs) -> what runs a segment.\n\n"
             "places: (a register's number, -1 for the mask, -2 for a result, or a constant, its type) each; code: int32, five words an\n"
             "operation (key, result, three operands), or (-1, first result, number of the external, how many at once, 0); externals:\n"
             "(function, whether it asks for the warp, ((type, place, ...) of each argument)); outputs: (register, place, type).");
static PyObject *py_program(PyObject *self, PyObject *given) {
    (void)self;
    PyObject *places, *code, *externals, *outputs;
    if (!PyArg_ParseTuple(given, "O!SO!O!", &PyTuple_Type, &places, &code, &PyTuple_Type, &externals, &PyTuple_Type, &outputs)) return NULL;
    Program *program = PyObject_GC_New(Program, &program_type);
    if (!program) return NULL;
    memset((char *)program + offsetof(Program, call), 0, sizeof(Program) - offsetof(Program, call));
    program->call = run;
    PyObject_GC_Track(program);
    if (fill(program, places, code, externals, outputs) < 0) Py_CLEAR(program);
    return (PyObject *)program;
}

static PyMethodDef methods[] = {{"program", py_program, METH_VARARGS, program_doc}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "lane_program", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_lane_program(void) {
    import_array();
    if (PyType_Ready(&program_type) < 0) return NULL;
    return PyModule_Create(&module);
}
