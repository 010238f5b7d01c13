// CANN spreads its functions over several libraries, and clients name them in their dependences. Here all
// functions are in libascendcl.so; a companion only brings it along.
