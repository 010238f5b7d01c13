"""The op table: ATen overloads, the aclnn calls that implement them, and what is generated from both."""
