// The part of the old TVM's C interface that its Cython bindings use. The wheel has the library and
// the source of the bindings, but no headers; layouts follow from the bindings and from DLPack.
#pragma once

#include <cstdint>

struct DLDevice {
  int device_type, device_id;
};

struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

union TVMValue {
  std::int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
};

using TVMPackedCFunc = int (*)(TVMValue*, int*, int, void*, void*);
using TVMPackedCFuncFinalizer = void (*)(void*);

extern "C" {
void TVMAPISetLastError(const char*);
void TVMAPISetLastPythonError(void*);
const char* TVMGetLastError();
int TVMBackendRegisterEnvCAPI(const char*, void*);
int TVMCbArgToReturn(TVMValue*, int*);
int TVMCFuncSetReturn(void*, TVMValue*, int*, int);
int TVMFuncCall(void*, TVMValue*, int*, int, TVMValue*, int*);
int TVMFuncCreateFromCFunc(TVMPackedCFunc, void*, TVMPackedCFuncFinalizer, void**);
int TVMFuncFree(void*);
int TVMFuncGetGlobal(const char*, void**);
int TVMObjectFree(void*);
int TVMObjectGetTypeIndex(void*, unsigned*);
int TVMObjectRetain(void*);
int TVMArrayAlloc(const std::int64_t*, std::int64_t, DLDataType, DLDevice, DLTensor**);
int TVMArrayCopyFromTo(DLTensor*, DLTensor*, void*);
int TVMArrayFree(DLTensor*);
int TVMArrayFromDLPack(DLManagedTensor*, DLTensor**);
int TVMArrayToDLPack(DLTensor*, DLManagedTensor**);
void TVMDLManagedTensorCallDeleter(DLManagedTensor*);
}

namespace tvm {
namespace runtime {

// An array's handle points behind its object header: type index, reference counter, deleter.
inline void* TVMArrayHandleToObjectHandle(DLTensor* handle) {
  return reinterpret_cast<char*>(handle) - 16;
}

}  // namespace runtime
}  // namespace tvm
