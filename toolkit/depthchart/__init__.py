"""depthchart: where can the prefix cache of a hybrid language model keep its states?"""
