/* What is done with the lanes of every load and store (lanes.py). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <string.h>

static int is_flat(PyObject *array) { return PyArray_Check(array) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)array); }

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
    int same = count < 2 || !memcmp(data, data + size, (count - 1) * size); /* each is its neighbour */
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
    for (npy_intp i = 0; i < lanes; i++) memcpy(to + i * total, memory + offsets[i], total);
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
        memcpy(memory + offsets[i], from + i * total, total);
        if (flags) memset(flags + offsets[i], 1, total);
    }
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {{"uniform", py_uniform, METH_O, uniform_doc},
                                {"span", (PyCFunction)(void (*)(void))py_span, METH_FASTCALL, span_doc},
                                {"take", (PyCFunction)(void (*)(void))py_take, METH_FASTCALL, take_doc},
                                {"put", (PyCFunction)(void (*)(void))py_put, METH_FASTCALL, put_doc},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "lanes", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_lanes(void) {
    import_array();
    return PyModule_Create(&module);
}
