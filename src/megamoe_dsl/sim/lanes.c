/* What is done with the lanes of every load and store (lanes.py). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <string.h>

static int is_flat(PyObject *array) { return PyArray_Check(array) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)array); }

/* memcpy of a size that compilers know is one instruction. */
static inline void copy(char *to, const char *from, npy_intp size) {
    switch (size) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    case 16: memcpy(to, from, 16); break;
    default: memcpy(to, from, size);
    }
}

static const npy_int64 *offsets_of(PyObject *array, npy_intp *count) {
    if (!is_flat(array) || PyArray_TYPE((PyArrayObject *)array) != NPY_INT64 || !PyArray_SIZE((PyArrayObject *)array)) {
        PyErr_SetString(PyExc_TypeError, "addresses are int64, of one lane at least");
        return NULL;
    }
    *count = PyArray_SIZE((PyArrayObject *)array);
    return PyArray_DATA((PyArrayObject *)array);
}

PyDoc_STRVAR(uniform_doc, "uniform(values) -> whether all lanes have the same bits");
static PyObject *py_uniform(PyObject *self, PyObject *given) {
    (void)self;
    if (!PyArray_Check(given)) return PyErr_Format(PyExc_TypeError, "an array was expected");
    PyArrayObject *values = PyArray_GETCONTIGUOUS((PyArrayObject *)given);
    if (!values) return NULL;
    npy_intp count = PyArray_DIM(values, 0), size = count ? PyArray_NBYTES(values) / count : 0;
    const char *data = PyArray_DATA(values);
    int same = count < 2 || !memcmp(data, data + size, (count - 1) * size); /* each is its neighbor */
    Py_DECREF(values);
    return PyBool_FromLong(same);
}

PyDoc_STRVAR(span_doc, "span(addresses, size) -> the lowest, the highest, and whether all are multiples of `size`, a power of two");
static PyObject *py_span(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    npy_intp lanes;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "two arguments");
    const npy_int64 *each = offsets_of(given[0], &lanes);
    if (!each) return NULL;
    npy_int64 low = each[0], high = each[0], bits = 0, size = PyLong_AsLongLong(given[1]);
    for (npy_intp i = 0; i < lanes; i++) {
        low = each[i] < low ? each[i] : low;
        high = each[i] > high ? each[i] : high;
        bits |= each[i];
    }
    return Py_BuildValue("LLO", (long long)low, (long long)high, bits & (size - 1) ? Py_False : Py_True);
}

/* Bytes of memory, of rows that hold one access each, with the flags of those ever written; 0: some offset lies outside. */
static char *memory_of(PyObject *rows, const npy_int64 *offsets, npy_intp lanes, npy_int64 total, PyObject *valid, npy_bool **flags) {
    *flags = NULL;
    if (!is_flat(rows) || (valid != Py_None && (!is_flat(valid) || PyArray_TYPE((PyArrayObject *)valid) != NPY_BOOL))) {
        PyErr_SetString(PyExc_TypeError, "memory is an array without gaps");
        return NULL;
    }
    npy_intp end = PyArray_NBYTES((PyArrayObject *)rows);
    if (valid != Py_None) {
        *flags = PyArray_DATA((PyArrayObject *)valid);
        if (PyArray_SIZE((PyArrayObject *)valid) < end) end = PyArray_SIZE((PyArrayObject *)valid);
    }
    for (npy_intp i = 0; i < lanes; i++)
        if (offsets[i] < 0 || offsets[i] > end - total) {
            PyErr_SetString(PyExc_IndexError, "an access outside of memory");
            return NULL;
        }
    return PyArray_DATA((PyArrayObject *)rows);
}

PyDoc_STRVAR(take_doc, "take(rows, valid, offsets, total) -> a row of `total` bytes for each offset, None when a byte of them is not valid");
static PyObject *py_take(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    npy_intp lanes, shape[2];
    npy_bool *flags;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "four arguments");
    const npy_int64 *offsets = offsets_of(given[2], &lanes);
    npy_int64 total = PyLong_AsLongLong(given[3]);
    const char *memory = offsets ? memory_of(given[0], offsets, lanes, total, given[1], &flags) : NULL;
    if (!memory) return NULL;
    PyArrayObject *rows = (PyArrayObject *)given[0];
    for (npy_intp i = 0; flags && i < lanes; i++)
        if (memchr(flags + offsets[i], 0, total)) Py_RETURN_NONE;
    shape[0] = lanes;
    shape[1] = PyArray_NDIM(rows) > 1 ? PyArray_DIM(rows, 1) : 1;
    PyArray_Descr *element = PyArray_DESCR(rows);
    if (shape[1] * PyDataType_ELSIZE(element) != total) return PyErr_Format(PyExc_ValueError, "rows of another size than %lld", total);
    Py_INCREF(element);
    PyObject *taken = PyArray_SimpleNewFromDescr(PyArray_NDIM(rows), shape, element);
    if (!taken) return NULL;
    char *to = PyArray_DATA((PyArrayObject *)taken);
    for (npy_intp i = 0; i < lanes; i++) copy(to + i * total, memory + offsets[i], total);
    return taken;
}

PyDoc_STRVAR(put_doc, "put(rows, valid, offsets, total, values) -> whether the values, of the rows' type, were stored, and their bytes made valid");
static PyObject *py_put(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    npy_intp lanes;
    npy_bool *flags;
    if (count != 5) return PyErr_Format(PyExc_TypeError, "five arguments");
    const npy_int64 *offsets = offsets_of(given[2], &lanes);
    npy_int64 total = PyLong_AsLongLong(given[3]);
    char *memory = offsets ? memory_of(given[0], offsets, lanes, total, given[1], &flags) : NULL;
    if (!memory) return NULL;
    PyArrayObject *values = (PyArrayObject *)given[4];
    if (!is_flat(given[4]) || PyArray_TYPE(values) != PyArray_TYPE((PyArrayObject *)given[0]) || PyArray_NBYTES(values) != lanes * total)
        Py_RETURN_FALSE;
    const char *from = PyArray_DATA(values);
    for (npy_intp i = 0; i < lanes; i++) {
        copy(memory + offsets[i], from + i * total, total);
        if (flags) memset(flags + offsets[i], 1, total);
    }
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(addresses_doc, "addresses(values, offset) -> values, of 4 unsigned or of 8 bytes, plus an offset, as int64");
static PyObject *py_addresses(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "two arguments");
    if (!PyArray_Check(given[0])) return PyErr_Format(PyExc_TypeError, "an array was expected");
    PyArrayObject *values = PyArray_GETCONTIGUOUS((PyArrayObject *)given[0]);
    if (!values) return NULL;
    npy_intp lanes = PyArray_SIZE(values);
    npy_uint64 offset = (npy_uint64)PyLong_AsLongLong(given[1]);
    PyObject *sums = PyArray_SimpleNew(1, &lanes, NPY_INT64);
    npy_uint64 *to = sums ? PyArray_DATA((PyArrayObject *)sums) : NULL;
    if (!sums) {
    } else if (PyArray_ITEMSIZE(values) == 8) {
        const npy_uint64 *from = PyArray_DATA(values);
        for (npy_intp i = 0; i < lanes; i++) to[i] = from[i] + offset;
    } else if (PyArray_TYPE(values) == NPY_UINT32) {
        const npy_uint32 *from = PyArray_DATA(values);
        for (npy_intp i = 0; i < lanes; i++) to[i] = from[i] + offset;
    } else {
        Py_CLEAR(sums);
        PyErr_Format(PyExc_TypeError, "addresses have 4 unsigned bytes or 8");
    }
    Py_DECREF(values);
    return sums;
}

/* The flags of a mask, NULL for all lanes; `*some` is how many it has. -1: no mask. */
static int flags_of(PyObject *mask, npy_intp lanes, const npy_bool **flags, npy_intp *some) {
    *flags = NULL;
    *some = lanes;
    if (mask == Py_None) return 0;
    if (!is_flat(mask) || PyArray_TYPE((PyArrayObject *)mask) != NPY_BOOL || PyArray_SIZE((PyArrayObject *)mask) != lanes) {
        PyErr_SetString(PyExc_TypeError, "a mask has a flag for every lane");
        return -1;
    }
    *flags = PyArray_DATA((PyArrayObject *)mask);
    *some = 0;
    for (npy_intp i = 0; i < lanes; i++) *some += (*flags)[i];
    return 0;
}

PyDoc_STRVAR(stacked_doc, "stacked(columns, mask) -> a row for every lane of the mask (None: all) with an element of every column, an array if one");
static PyObject *py_stacked(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 2 || !PyList_Check(given[0]) || !PyList_GET_SIZE(given[0])) return PyErr_Format(PyExc_TypeError, "a list of columns, and a mask");
    Py_ssize_t columns = PyList_GET_SIZE(given[0]);
    PyArrayObject *first = (PyArrayObject *)PyList_GET_ITEM(given[0], 0);
    if (!PyArray_Check(first)) return PyErr_Format(PyExc_TypeError, "an array was expected");
    npy_intp lanes = PyArray_SIZE(first), size = PyArray_ITEMSIZE(first), some, shape[2];
    const npy_bool *flags;
    if (flags_of(given[1], lanes, &flags, &some) < 0) return NULL;
    shape[0] = some;
    shape[1] = columns;
    PyArray_Descr *element = PyArray_DESCR(first);
    Py_INCREF(element);
    PyObject *rows = PyArray_SimpleNewFromDescr(columns > 1 ? 2 : 1, shape, element);
    if (!rows) return NULL;
    for (Py_ssize_t k = 0; k < columns; k++) {
        PyArrayObject *column = (PyArrayObject *)PyList_GET_ITEM(given[0], k);
        if (!PyArray_Check(column) || PyArray_NDIM(column) != 1 || PyArray_SIZE(column) != lanes || PyArray_ITEMSIZE(column) != size) {
            Py_DECREF(rows);
            return PyErr_Format(PyExc_TypeError, "columns are of one length and type");
        }
        char *to = (char *)PyArray_DATA((PyArrayObject *)rows) + k * size;
        const char *from = PyArray_DATA(column);
        npy_intp step = PyArray_STRIDE(column, 0);
        for (npy_intp i = 0; i < lanes; i++, from += step) {
            if (flags && !flags[i]) continue;
            copy(to, from, size);
            to += columns * size;
        }
    }
    return rows;
}

PyDoc_STRVAR(deliver_doc, "deliver(registers, numbers, rows, mask): columns of rows, one row for every lane of the mask, become these registers");
static PyObject *py_deliver(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    if (count != 4 || !PyList_Check(given[0]) || !PyTuple_Check(given[1]) || !is_flat(given[2]))
        return PyErr_Format(PyExc_TypeError, "registers, their numbers, rows and a mask");
    PyArrayObject *rows = (PyArrayObject *)given[2];
    npy_intp columns = PyTuple_GET_SIZE(given[1]), lanes = 32, size = PyArray_ITEMSIZE(rows), some;
    const npy_bool *flags;
    if (flags_of(given[3], lanes, &flags, &some) < 0) return NULL;
    if (PyArray_SIZE(rows) != some * columns) return PyErr_Format(PyExc_ValueError, "%zd lanes of %zd columns expected", some, columns);
    for (npy_intp k = 0; k < columns; k++) {
        Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GET_ITEM(given[1], k));
        if (number < 0 || number >= PyList_GET_SIZE(given[0])) return PyErr_Format(PyExc_IndexError, "no register %zd", number);
        PyArrayObject *before = (PyArrayObject *)PyList_GET_ITEM(given[0], number);
        if (!PyArray_Check(before) || PyArray_SIZE(before) != lanes || PyArray_ITEMSIZE(before) != size)
            return PyErr_Format(PyExc_TypeError, "register %zd has not %zd lanes of %zd bytes", number, lanes, size);
        PyArray_Descr *element = PyArray_DESCR(before);
        Py_INCREF(element);
        PyObject *values = PyArray_SimpleNewFromDescr(1, &lanes, element);
        if (!values) return NULL;
        char *to = PyArray_DATA((PyArrayObject *)values);
        const char *from = (char *)PyArray_DATA(rows) + k * size, *old = PyArray_DATA(before);
        npy_intp step = PyArray_STRIDE(before, 0);
        for (npy_intp i = 0; i < lanes; i++, to += size, old += step) {
            int here = !flags || flags[i];
            copy(to, here ? from : old, size);
            if (here) from += columns * size;
        }
        PyList_SetItem(given[0], number, values);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"uniform", py_uniform, METH_O, uniform_doc},
                                {"span", (PyCFunction)(void (*)(void))py_span, METH_FASTCALL, span_doc},
                                {"take", (PyCFunction)(void (*)(void))py_take, METH_FASTCALL, take_doc},
                                {"put", (PyCFunction)(void (*)(void))py_put, METH_FASTCALL, put_doc},
                                {"addresses", (PyCFunction)(void (*)(void))py_addresses, METH_FASTCALL, addresses_doc},
                                {"stacked", (PyCFunction)(void (*)(void))py_stacked, METH_FASTCALL, stacked_doc},
                                {"deliver", (PyCFunction)(void (*)(void))py_deliver, METH_FASTCALL, deliver_doc},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "lanes", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_lanes(void) {
    import_array();
    return PyModule_Create(&module);
}
