/* What most accesses are to the race detector: nothing to report, a record to update (race.py).
 *
 * Every function answers whether a clock knows all of what it was asked about. Where it does not, nothing has changed, and race.py looks
 * again. Records are int64 (access_record.py, which gives FIELDS), clocks int32 [rows, agents] (clock.py), an index is a slice or int64. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#define AGENT(record) ((record) & AGENT_MASK)
#define CLOCK(record) ((record) >> CLOCK_SHIFT)

typedef struct {
    const npy_int64 *each; /* NULL: from `first` on */
    npy_intp first, count;
} Places;

typedef struct {
    const npy_int32 *rows;
    npy_intp width;
} Known;

static int places_of(PyObject *index, npy_intp size, Places *places) {
    if (PySlice_Check(index)) {
        Py_ssize_t end, step;
        if (PySlice_Unpack(index, &places->first, &end, &step) < 0) return -1;
        places->each = NULL;
        places->count = PySlice_AdjustIndices(size, &places->first, &end, step);
        return 0;
    }
    PyArrayObject *array = (PyArrayObject *)index;
    if (!PyArray_Check(index) || PyArray_TYPE(array) != NPY_INT64 || !PyArray_IS_C_CONTIGUOUS(array)) {
        PyErr_SetString(PyExc_TypeError, "an index is a slice or int64");
        return -1;
    }
    places->each = PyArray_DATA(array);
    places->count = PyArray_SIZE(array);
    for (npy_intp i = 0; i < places->count; i++)
        if (places->each[i] < 0 || places->each[i] >= size) {
            PyErr_SetString(PyExc_IndexError, "an index beyond the records");
            return -1;
        }
    return 0;
}

static inline npy_intp place(const Places *places, npy_intp i) { return places->each ? places->each[i] : places->first + i; }

static void *data_of(PyObject *array, int type) {
    if (!PyArray_Check(array) || PyArray_TYPE((PyArrayObject *)array) != type || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)array)) {
        PyErr_SetString(PyExc_TypeError, "an array of another type or layout was expected");
        return NULL;
    }
    return PyArray_DATA((PyArrayObject *)array);
}

static int known_of(PyObject *rows, Known *known) {
    known->rows = data_of(rows, NPY_INT32);
    if (!known->rows) return -1;
    known->width = PyArray_DIM((PyArrayObject *)rows, PyArray_NDIM((PyArrayObject *)rows) - 1);
    return 0;
}

static inline int knows(const Known *known, int row, npy_int64 record) {
    return AGENT(record) < known->width && CLOCK(record) <= known->rows[row * known->width + AGENT(record)];
}

/* Neighbors were mostly touched by one instruction: what was just found to be known is not looked up again. */
static int all_known(const npy_int64 *records, const Places *places, const Known *known, int row, npy_int64 besides) {
    npy_int64 last = 0;
    for (npy_intp i = 0; i < places->count; i++) {
        npy_int64 record = records[place(places, i)];
        if (record == last) continue;
        if (!(record & besides) && !knows(known, row, record)) return 0;
        last = record;
    }
    return 1;
}

static int any_of(PyObject *flags, const Places *places) {
    if (flags == Py_None) return 0;
    const npy_bool *each = data_of(flags, NPY_BOOL);
    if (!each) return -1;
    for (npy_intp i = 0; i < places->count; i++)
        if (each[place(places, i)]) return 1;
    return 0;
}

static int store(npy_int64 *records, const Places *places, PyObject *new) {
    if (PyLong_Check(new)) {
        npy_int64 record = PyLong_AsLongLong(new);
        for (npy_intp i = 0; i < places->count; i++) records[place(places, i)] = record;
        return 0;
    }
    const npy_int64 *each = data_of(new, NPY_INT64);
    if (!each) return -1;
    for (npy_intp i = 0; i < places->count; i++) records[place(places, i)] = each[i];
    return 0;
}

PyDoc_STRVAR(knows_doc, "knows(records, index, rows, row) -> whether a row of a clock covers these records");
static PyObject *py_knows(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "four arguments");
    Places places;
    Known known;
    const npy_int64 *records = data_of(given[0], NPY_INT64);
    if (!records || places_of(given[1], PyArray_SIZE((PyArrayObject *)given[0]), &places) || known_of(given[2], &known)) return NULL;
    return PyBool_FromLong(all_known(records, &places, &known, (int)PyLong_AsLong(given[3]), 0));
}

/* Whether an access knows all writes, those that the async proxy must see included, and nobody raised a flag; -1: error. */
static int past_writes(const npy_int64 *writes, PyObject *flags, const Places *places, const Known *known, int proxy) {
    if (!all_known(writes, places, known, HAPPENED, 0) || (proxy && !all_known(writes, places, known, proxy, ASYNC_BIT))) return 0;
    int flagged = any_of(flags, places);
    return flagged < 0 ? -1 : !flagged;
}

PyDoc_STRVAR(access_doc, "access(writes, reads, flags, others, index, rows, proxy, new, reading) -> whether all is known, and `new` recorded");
static PyObject *py_access(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 9) return PyErr_Format(PyExc_TypeError, "nine arguments");
    Places places;
    Known known;
    npy_int64 *writes = data_of(given[0], NPY_INT64), *reads = data_of(given[1], NPY_INT64);
    if (!writes || !reads || places_of(given[4], PyArray_SIZE((PyArrayObject *)given[0]), &places) || known_of(given[5], &known)) return NULL;
    int answer = past_writes(writes, given[2], &places, &known, (int)PyLong_AsLong(given[6]));
    if (answer > 0) answer = all_known(reads, &places, &known, READS, 0) ? 1 - any_of(given[3], &places) : 0;
    if (answer > 1 || answer < 0 || (answer && store(given[8] == Py_True ? reads : writes, &places, given[7]) < 0)) return NULL;
    return PyBool_FromLong(answer);
}

/* Whether a read comes after an earlier one in the order of its warp, or is too like it to matter (`LaneOrder.in_order`). */
static inline int after(npy_int64 last, npy_int64 new, const npy_int32 *warps, npy_int64 own, npy_int64 synced) {
    if (own < 0 || warps[AGENT(last)] != own) return 0;
    npy_int64 change = last ^ new;
    return CLOCK(last) <= synced || (!(change & CODE_MASK) && ((last & CODE_MASK) >> CODE_SHIFT < ALIKE || !AGENT(change)));
}

PyDoc_STRVAR(read_doc, "read(writes, reads, flags, index, rows, proxy, new, warps, own, synced) -> None, () or what is concurrent");
static PyObject *py_read(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 10) return PyErr_Format(PyExc_TypeError, "ten arguments");
    Places places;
    Known known;
    npy_int64 *writes = data_of(given[0], NPY_INT64), *reads = data_of(given[1], NPY_INT64);
    const npy_int32 *warps = data_of(given[7], NPY_INT32);
    if (!writes || !reads || !warps || places_of(given[3], PyArray_SIZE((PyArrayObject *)given[0]), &places) || known_of(given[4], &known))
        return NULL;
    int answer = past_writes(writes, given[2], &places, &known, (int)PyLong_AsLong(given[5]));
    if (answer <= 0) return answer < 0 ? NULL : Py_NewRef(Py_None);
    npy_int64 one = 0, own = PyLong_AsLongLong(given[8]), synced = PyLong_AsLongLong(given[9]);
    const npy_int64 *each = NULL;
    if (PyLong_Check(given[6])) one = PyLong_AsLongLong(given[6]);
    else if (!(each = data_of(given[6], NPY_INT64))) return NULL;
    PyObject *index = NULL, *records = NULL;
    npy_int64 *to_index = NULL, *to_records = NULL;
    npy_intp found = 0;
    for (npy_intp i = 0; i < places.count; i++) {
        npy_intp at = place(&places, i);
        npy_int64 last = reads[at], new = each ? each[i] : one;
        if (knows(&known, READS, last) || after(last, new, warps, own, synced)) {
            reads[at] = new;
            continue;
        }
        if (!index) {
            npy_intp most = places.count - i;
            index = PyArray_SimpleNew(1, &most, NPY_INT64);
            records = PyArray_SimpleNew(1, &most, NPY_INT64);
            if (!index || !records) return NULL;
            to_index = PyArray_DATA((PyArrayObject *)index);
            to_records = PyArray_DATA((PyArrayObject *)records);
        }
        to_index[found] = at;
        to_records[found++] = new;
    }
    if (!found) return PyTuple_New(0);
    PyArray_DIMS((PyArrayObject *)index)[0] = PyArray_DIMS((PyArrayObject *)records)[0] = found;
    return Py_BuildValue("NN", index, records);
}

PyDoc_STRVAR(keep_doc, "keep(some, row, first, index, new): records of concurrent reads, for the page of locations from `first` on");
static PyObject *py_keep(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "five arguments");
    Places places;
    npy_bool *some = data_of(given[0], NPY_BOOL);
    npy_int64 *row = data_of(given[1], NPY_INT64), *new = data_of(given[4], NPY_INT64), first = PyLong_AsLongLong(given[2]);
    if (!some || !row || !new || places_of(given[3], PyArray_SIZE((PyArrayObject *)given[0]), &places)) return NULL;
    npy_intp size = PyArray_SIZE((PyArrayObject *)given[1]);
    for (npy_intp i = 0; i < places.count; i++) {
        npy_intp at = place(&places, i), here = at - first;
        if (here < 0 || here >= size) continue;
        int several = some[at] && row[here] && (row[here] ^ new[i]) & CODE_MASK;
        row[here] = several ? (new[i] & ~CODE_MASK) | (npy_int64)ALIKE << CODE_SHIFT : new[i];
        some[at] = 1;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(pages_doc, "pages(index, shift) -> a list of the pages of 2 ** shift locations in which an int64 index lies");
static PyObject *py_pages(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "two arguments");
    Places places;
    long shift = PyLong_AsLong(given[1]);
    PyObject *pages = PyList_New(0);
    if (!pages || places_of(given[0], NPY_MAX_INTP, &places)) return NULL;
    npy_intp before = -1;
    for (npy_intp i = 0; i < places.count; i++) {
        npy_intp page = place(&places, i) >> shift;
        if (page == before) continue;
        PyObject *number = PyLong_FromSsize_t(before = page);
        if (!number) return NULL;
        int there = PySequence_Contains(pages, number);
        if (there < 0 || (!there && PyList_Append(pages, number))) return NULL;
        Py_DECREF(number);
    }
    return pages;
}

PyDoc_STRVAR(locate_doc, "locate(starts, size, first, shifts, page) -> the records of accesses, or None where pages are to become finer");
static PyObject *py_locate(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "five arguments");
    long size = PyLong_AsLong(given[1]), page_shift = PyLong_AsLong(given[4]);
    const npy_int64 *first = data_of(given[2], NPY_INT64);
    const npy_uint8 *shifts = data_of(given[3], NPY_UINT8);
    Places starts;
    if (!first || !shifts || places_of(given[0], PyArray_SIZE((PyArrayObject *)given[3]) << page_shift, &starts)) return NULL;
    if (!starts.count) Py_RETURN_NONE;
    npy_uint8 shift = shifts[place(&starts, 0) >> page_shift];
    npy_intp each = size >> shift, all = each * starts.count;
    if (!each) Py_RETURN_NONE;
    PyObject *index = PyArray_SimpleNew(1, &all, NPY_INT64);
    if (!index) return NULL;
    npy_int64 *to = PyArray_DATA((PyArrayObject *)index);
    for (npy_intp i = 0; i < starts.count; i++) {
        npy_int64 start = place(&starts, i), page = start >> page_shift;
        if (shifts[page] != shift) {
            Py_DECREF(index);
            Py_RETURN_NONE;
        }
        npy_int64 record = first[page] + ((start & ((1L << page_shift) - 1)) >> shift);
        for (npy_intp k = 0; k < each; k++) *to++ = record + k;
    }
    return index;
}

PyDoc_STRVAR(raise_to_doc, "raise_to(clock, rows, known): rows of a clock know agents up to a time at least, of a list of (agents, time)");
static PyObject *py_raise_to(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 3 || !PyTuple_Check(given[1]) || !PyList_Check(given[2])) return PyErr_Format(PyExc_TypeError, "a clock, a tuple and a list");
    npy_int32 *clock = data_of(given[0], NPY_INT32);
    if (!clock) return NULL;
    npy_intp rows = PyArray_DIM((PyArrayObject *)given[0], 0), width = PyArray_SIZE((PyArrayObject *)given[0]) / rows;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(given[2]); k++) {
        PyObject *one = PyList_GET_ITEM(given[2], k);
        Places agents;
        if (!PyTuple_Check(one) || PyTuple_GET_SIZE(one) != 2) return PyErr_Format(PyExc_TypeError, "pairs of agents and a time");
        if (places_of(PyTuple_GET_ITEM(one, 0), width, &agents)) return NULL;
        npy_int32 when = (npy_int32)PyLong_AsLong(PyTuple_GET_ITEM(one, 1));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[1]); i++) {
            long number = PyLong_AsLong(PyTuple_GET_ITEM(given[1], i));
            if (number < 0 || number >= rows) return PyErr_Format(PyExc_IndexError, "a clock has no row %ld", number);
            npy_int32 *row = clock + width * number;
            for (npy_intp j = 0; j < agents.count; j++)
                if (row[place(&agents, j)] < when) row[place(&agents, j)] = when;
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"knows", (PyCFunction)(void (*)(void))py_knows, METH_FASTCALL, knows_doc},
                                {"read", (PyCFunction)(void (*)(void))py_read, METH_FASTCALL, read_doc},
                                {"access", (PyCFunction)(void (*)(void))py_access, METH_FASTCALL, access_doc},
                                {"pages", (PyCFunction)(void (*)(void))py_pages, METH_FASTCALL, pages_doc},
                                {"raise_to", (PyCFunction)(void (*)(void))py_raise_to, METH_FASTCALL, raise_to_doc},
                                {"locate", (PyCFunction)(void (*)(void))py_locate, METH_FASTCALL, locate_doc},
                                {"keep", (PyCFunction)(void (*)(void))py_keep, METH_FASTCALL, keep_doc},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "quick_check", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_quick_check(void) {
    import_array();
    return PyModule_Create(&module);
}
